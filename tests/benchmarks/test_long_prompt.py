import pytest
from fakes.http import serve
from real_backend import TinyLoader

from benchmarks.long_prompt import gaps_ms, measure, render


def test_gaps_belong_to_the_window_in_which_they_end() -> None:
    times_s = [[0.0, 1.0, 2.5, 4.0], [0.5, 3.0]]
    assert gaps_ms(times_s, [(0.0, 2.6)]) == pytest.approx([1000, 1500])
    assert gaps_ms(times_s, [(0.9, 1.1), (2.9, 3.1)]) == pytest.approx([1000, 2500])
    assert gaps_ms([[1.0], []], [(0.0, 9.0)]) == []


def test_streams_and_a_long_prompt_on_a_server() -> None:
    loader = TinyLoader(max_position_embeddings=4096)
    with serve(loader, max_model_len=4096, max_num_seqs=4, max_num_batched_tokens=64) as served:
        found = measure(
            served.url, num_streams=3, long_tokens=600, quiet_s=0.5, new_tokens=2000
        )  # fmt: skip
    assert found.long_tokens == 600
    assert min(found.quiet_gaps, found.busy_gaps) > 0
    assert found.ratio > 0
    assert "beside 600 tokens" in render(found)
