import pytest
from fakes.process import process

from benchmarks.client_process import ClientProcess
from benchmarks.contenders.http import run_times
from benchmarks.contenders.transformers_serve import token_times
from benchmarks.stream_client import Arrivals, describe, unchunk

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def test_chunks_are_joined_and_a_broken_one_is_left_out() -> None:
    assert unchunk(b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n") == b"abcd"
    assert unchunk(b"3\r\nabc\r\n1") == b"abc"


def test_frames_of_a_stream() -> None:
    body = b'a\r\ndata: {"a"\r\n12\r\n:1}\n\ndata: [DONE]\n\r\n1\r\n\n\r\n0\r\n\r\n'
    found = describe(Arrivals([1.0, 2.0], bytearray(HEAD + body)))
    assert found["frames"] == ['{"a":1}', "[DONE]"]
    assert (found["status"], found["error"]) == (200, "")


def test_a_refusal_is_told() -> None:
    found = describe(Arrivals([], bytearray(b"HTTP/1.1 429 Too Many\r\n\r\nbusy")))
    assert (found["status"], found["error"]) == (429, "busy")
    with pytest.raises(RuntimeError, match="answered 429: busy"):
        run_times({"start_s": 0.0, "streams": [found]}, 1)


def test_tokens_that_share_a_chunk_arrived_together() -> None:
    frames = ['{"choices":[{"text":"a"}]}', '{"choices":[{"text":"b"}]}']
    frames.append('{"choices":[{"text":""}],"usage":{"completion_tokens":4}}')
    stream = {"status": 200, "times_s": [1.0, 2.0, 3.0], "frames": frames}
    assert token_times(stream, 4) == [1.0, 1.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="instead of 5 tokens"):
        token_times(stream, 5)


def test_streams_through_the_client_process() -> None:
    bodies = [{"inputs": "a b", "parameters": {"max_new_tokens": 5}}] * 3
    with process(wait="ready") as (_, port, _), ClientProcess() as client:
        for _ in range(2):
            answer = client.stream(f"http://127.0.0.1:{port}", "/generate_stream", bodies)
            run = run_times(answer, 5)
            assert [len(times) for times in run.token_times_s] == [5, 5, 5]
            assert run.start_s < run.token_times_s[0][0]
