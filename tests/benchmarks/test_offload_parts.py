"""The small parts of the offload measurement."""

import pytest

from benchmarks.kept_prompts import KeptPrompts
from benchmarks.lookup_tally import LookupTally
from benchmarks.package_text import package_text
from benchmarks.phase_tally import PhaseTally
from benchmarks.prompt_source import reference_text
from benchmarks.repetition import repeated_share
from engram_core.stats import LookupStats, WaitStats
from server.engine.types import StepStats


def step(phase: str, outcome: str, wait_s: float, **rows: int) -> StepStats:
    lookups = [
        LookupStats(layer, phase, outcome, 0.1, 0.0, 5, 5, rows_by_tier=rows) for layer in (1, 2)
    ]
    waits = [WaitStats(layer, phase, wait_s) for layer in (1, 2)]
    return StepStats(0, 1, 1, 0.2, 0, tuple(lookups), tuple(waits))


def test_lookups_are_counted_by_phase() -> None:
    tally = LookupTally()
    tally.record_step(step("prefill", "late", 0.5, ssd=5))
    tally.record_step(step("decode", "hidden", 0.0, hot=4, ssd=1))
    tally.record_step(step("decode", "partial", 0.25, hot=5))
    taken = tally.take()
    assert taken["prefill"].rows_by_tier == {"ssd": 10}
    decode = taken["decode"]
    assert (decode.steps, decode.wait_s) == (2, 0.5)
    assert decode.outcomes == {"hidden": 2, "partial": 2}
    assert (decode.rows, decode.share("hot")) == (20, 0.9)
    assert tally.take() == {}


def test_tallies_add_up_and_survive_json() -> None:
    one = PhaseTally(2, {"hot": 3}, {"hot": 0.5}, {"hidden": 1}, 0.25, 10)
    other = PhaseTally(1, {"hot": 1, "ssd": 4}, {"ssd": 2.0}, {"late": 1}, 0.5, 5)
    total = PhaseTally.sum_of([one, PhaseTally(**other.to_dict())])
    assert total == PhaseTally(
        3, {"hot": 4, "ssd": 4}, {"hot": 0.5, "ssd": 2.0}, {"hidden": 1, "late": 1}, 0.75, 15
    )
    assert one.rows_by_tier == {"hot": 3}
    assert PhaseTally.sum_of([]).share("hot") == 0


def test_answers_that_run_in_circles() -> None:
    assert repeated_share([[1, 2, 3, 4]]) == 0
    assert repeated_share([[1, 2, 1, 2, 1]]) == 0.5
    assert repeated_share([[1, 2], [1, 2]]) == 0  # another answer's tokens do not count
    assert repeated_share([[1], []]) == 0


def test_prompts_come_back_in_the_same_order() -> None:
    class Counting:
        number = 0

        def take(self, num_prompts, num_tokens):
            self.number += 1
            return [[self.number] * num_tokens] * num_prompts

    kept = KeptPrompts(Counting())
    taken = [kept.take(2, 3), kept.take(2, 3)]
    replay = kept.replay()
    assert [replay.take(2, 3), replay.take(2, 3)] == taken
    with pytest.raises(ValueError, match="no 2 prompts of 3 tokens"):
        replay.take(2, 3)
    with pytest.raises(ValueError, match="no 1 prompts"):
        kept.replay().take(1, 3)


def test_the_text_of_packages_goes_on_where_the_manual_ends() -> None:
    text = package_text(len(reference_text()) + 50_000)
    assert len(text) >= len(reference_text()) + 50_000
    paragraphs = text.split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs)
    assert ">>>" not in text
