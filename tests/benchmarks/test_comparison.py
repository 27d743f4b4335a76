import pytest

from benchmarks.comparison import compare
from benchmarks.run_times import RunTimes
from benchmarks.workload import Workload, reference_text, workloads

TOKENS = list(range(100_000))


class ScriptedSide:
    """A side that takes a fixed time per token and records what it was given."""

    def __init__(self, name: str, token_s: float, log: list, answer: int = 7) -> None:
        self.name, self._token_s, self._log, self._answer = name, token_s, log, answer

    def run(self, prompts, new_tokens) -> RunTimes:
        self._log.append((self.name, [prompt[0] for prompt in prompts]))
        times = [self._token_s * (n + 1) for n in range(new_tokens)]
        return RunTimes(0.0, [times] * len(prompts), [[self._answer] * new_tokens] * len(prompts))


def test_ratio_of_two_scripted_sides() -> None:
    log: list = []
    fast, slow = ScriptedSide("fast", 0.5, log), ScriptedSide("slow", 1.0, log)
    result = compare(fast, slow, Workload("w", 2, 4, 5), TOKENS, num_pairs=4)
    assert result.medians() == {"fast": pytest.approx(4.0), "slow": pytest.approx(2.0)}
    assert result.interval.ratio == pytest.approx(2.0)
    assert result.equal_answers == 1.0
    assert result.to_dict()["workload"]["name"] == "w"


def test_sides_alternate_and_share_their_prompts() -> None:
    log: list = []
    one, two = ScriptedSide("one", 1.0, log), ScriptedSide("two", 1.0, log)
    compare(one, two, Workload("w", 2, 4, 3), TOKENS, num_pairs=4)
    counted = log[2:]  # the first pair only warms up
    names = [name for name, _ in counted]
    assert sorted(names[0:2]) == sorted(names[2:4]) == ["one", "two"]
    assert names[0] != names[2]
    assert all(counted[i][1] == counted[i + 1][1] for i in range(0, len(counted), 2))


def test_different_answers_are_counted() -> None:
    one, two = ScriptedSide("one", 1.0, [], answer=1), ScriptedSide("two", 1.0, [], answer=2)
    assert compare(one, two, Workload("w", 1, 4, 3), TOKENS, num_pairs=2).equal_answers == 0.0


def test_prefill_is_measured_to_the_first_token() -> None:
    side, other = ScriptedSide("a", 2.0, []), ScriptedSide("b", 2.0, [])
    result = compare(side, other, Workload("p", 1, 100, 1), TOKENS, num_pairs=2)
    assert result.medians()["a"] == pytest.approx(50.0)


def test_prompts_are_distinct_windows() -> None:
    prompts = Workload("w", 3, 4, 2).prompts(range(20), offset=4)
    assert prompts == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    with pytest.raises(ValueError, match="needs 16 tokens"):
        Workload("w", 3, 4, 2).prompts(range(15), offset=4)


def test_published_table_and_its_text() -> None:
    assert [w.num_seqs for w in workloads(128, 32, 512)] == [1, 8, 16, 1]
    assert len(reference_text()) > 100_000
