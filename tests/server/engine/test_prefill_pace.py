"""The budget of prompt tokens beside generating sequences, on machines of several kinds."""

import pytest

from server.engine.prefill_pace import MIN_TOKENS, PROBE_STEPS, PrefillPace


def run(pace, steps, *, decode_s, token_s, num_decodes=8):
    """A long prompt beside generating sequences; returns the steps' (tokens, seconds)."""
    done = []
    for _ in range(steps):
        tokens = pace.budget(num_decodes)
        duration_s = decode_s + token_s * tokens
        pace.note(num_decodes, tokens, duration_s)
        done.append((tokens, duration_s))
    return done


def test_without_a_bound_there_is_no_budget():
    pace = PrefillPace(None)
    pace.note(3, 100, 9.0)
    assert pace.budget(3) is None


def test_a_prompt_alone_has_no_bound():
    assert PrefillPace(2.0).budget(0) is None


@pytest.mark.parametrize(
    ("decode_s", "token_s"),
    [(0.035, 0.001), (0.02, 0.000_02), (0.1, 0.0004)],
    ids=["cpu", "gpu", "large"],
)
@pytest.mark.parametrize("slowdown", [1.5, 2.0, 4.0])
def test_steps_take_as_long_as_they_may(decode_s, token_s, slowdown):
    pace = PrefillPace(slowdown)
    steps = run(pace, 50, decode_s=decode_s, token_s=token_s)
    assert steps[0][0] == 0  # measured first
    assert steps[1][0] == MIN_TOKENS
    longest_s = max(decode_s * slowdown, decode_s + MIN_TOKENS * token_s)
    assert max(seconds for _, seconds in steps) <= longest_s * 1.01
    assert steps[-1][1] >= longest_s * 0.9


def test_it_follows_a_context_that_makes_tokens_dearer():
    pace = PrefillPace(2.0)
    run(pace, 40, decode_s=0.03, token_s=0.0003)
    steps = [
        run(pace, 1, decode_s=0.03, token_s=0.0003 * (1 + index / 50))[0] for index in range(60)
    ]
    assert max(seconds for _, seconds in steps) < 0.03 * 2.2


def test_generating_alone_is_measured_again_and_per_size_of_batch():
    pace = PrefillPace(2.0)
    steps = run(pace, 2 * PROBE_STEPS + 3, decode_s=0.03, token_s=0.001)
    assert [index for index, (tokens, _) in enumerate(steps) if tokens == 0] == [
        0, PROBE_STEPS + 1, 2 * PROBE_STEPS + 2,
    ]  # fmt: skip
    assert pace.budget(5) > 0  # as large as eight
    assert pace.budget(4) == 0


def test_few_do_not_hold_up_many():
    pace = PrefillPace(2.0)
    run(pace, 40, decode_s=0.03, token_s=0.001, num_decodes=4)
    assert pace.budget(4, num_prefills=4) == pace.budget(4)
    assert pace.budget(4, num_prefills=12) == pytest.approx(3 * pace.budget(4), abs=3)


def test_one_quick_step_opens_no_flood():
    pace = PrefillPace(2.0)
    run(pace, 40, decode_s=0.03, token_s=0.001)
    before = pace.budget(8)
    pace.note(8, before, 0.03)  # as if its tokens had cost nothing
    assert before < pace.budget(8) <= 2 * before


def test_a_few_tokens_say_little():
    pace = PrefillPace(2.0)
    run(pace, 40, decode_s=0.03, token_s=0.0001)
    before = pace.budget(8)
    pace.note(8, 3, 0.09)
    assert pace.budget(8) == before


def test_a_step_that_something_else_held_up_changes_nothing():
    pace = PrefillPace(2.0)
    run(pace, 40, decode_s=0.03, token_s=0.001)
    for _ in range(9):
        pace.note(8, 0, 0.03)
    before = pace.budget(8)
    pace.note(8, 0, 5.0)
    assert pace.budget(8) == before
