import pytest

from benchmarks.comparison import compare, turn
from benchmarks.run_times import RunTimes
from benchmarks.workload import Workload, workloads


class ScriptedContender:
    """Takes a fixed time per token and records what it was given."""

    bits, has_memory = "bf16", True

    def __init__(self, name: str, token_s: float, log: list, answer: int | None = 7) -> None:
        self.name, self._token_s, self._log, self._answer = name, token_s, log, answer

    def run(self, prompts, new_tokens) -> RunTimes:
        self._log.append((self.name, [prompt[0] for prompt in prompts]))
        times = [self._token_s * (n + 1) for n in range(new_tokens)]
        ids = [] if self._answer is None else [self._answer] * new_tokens
        return RunTimes(0.0, [times] * len(prompts), [ids] * len(prompts))


class CountingPrompts:
    """Prompts whose tokens are all different."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, num_prompts: int, num_tokens: int) -> list[list[int]]:
        prompts = []
        for _ in range(num_prompts):
            prompts.append(list(range(self._next, self._next + num_tokens)))
            self._next += num_tokens
        return prompts


SMALL = Workload("w", 2, 4, 5)


def run(contenders, workload=SMALL):
    return compare(contenders, workload, CountingPrompts(), num_rounds=4)


def test_ratios_to_the_first() -> None:
    fast, slow = ScriptedContender("fast", 0.5, []), ScriptedContender("slow", 1.0, [])
    entries = run([fast, slow]).entries
    assert [entry.median for entry in entries] == [pytest.approx(4.0), pytest.approx(2.0)]
    assert entries[0].first is None
    assert entries[1].first.ratio == pytest.approx(2.0)
    assert entries[1].same_answers == 1.0


def test_all_get_the_same_fresh_prompts_in_every_round() -> None:
    log: list = []
    run([ScriptedContender(name, 1.0, log) for name in "abc"])
    rounds = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert len(rounds) == 5  # one warms up
    assert all(sorted(name for name, _ in each) == ["a", "b", "c"] for each in rounds)
    assert all(len({tuple(given) for _, given in each}) == 1 for each in rounds)
    assert len({given[0] for _, given in log}) == 5


def test_the_order_changes_from_round_to_round() -> None:
    contenders = [ScriptedContender(name, 1.0, []) for name in "abc"]
    orders = ["".join(c.name for c in turn(contenders, number)) for number in range(6)]
    assert orders == ["abc", "cba", "bca", "acb", "cab", "bac"]
    assert [turn(contenders[:2], n)[0].name for n in range(4)] == ["a", "b", "b", "a"]


@pytest.mark.parametrize(("answer", "same"), [(7, 1.0), (8, 0.0), (None, None)])
def test_equal_answers_are_counted_where_they_are_told(answer, same) -> None:
    one, two = ScriptedContender("one", 1.0, []), ScriptedContender("two", 2.0, [], answer)
    assert run([one, two]).entries[1].same_answers == same


def test_prefill_is_measured_to_the_first_token() -> None:
    contenders = [ScriptedContender("a", 2.0, []), ScriptedContender("b", 2.0, [])]
    assert run(contenders, Workload("p", 1, 100, 1)).entries[0].median == pytest.approx(50.0)


def test_the_report_holds_everything() -> None:
    found = run([ScriptedContender("a", 1.0, []), ScriptedContender("b", 2.0, [])]).to_dict()
    assert found["workload"]["name"] == "w"
    assert found["entries"][1]["first"]["confidence"] == 0.95
    assert len(found["entries"][0]["rates"]) == 4


def test_published_shapes() -> None:
    assert [w.num_seqs for w in workloads(128, 32, 512).values()] == [1, 8, 16, 1]
