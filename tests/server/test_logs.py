"""Log lines: one per request, as text or JSON, without any prompt."""

import io
import json
import logging

import pytest
from fakes.http import serve, wait_until

from server.logs import LOGGERS, configure_logging

PROMPT = "a prompt that is nobody's business"


@pytest.fixture(autouse=True)
def _restore_logging():
    saved = {n: (logging.getLogger(n).handlers, logging.getLogger(n).propagate,
                 logging.getLogger(n).level) for n in LOGGERS}  # fmt: skip
    yield
    for name, (handlers, propagate, level) in saved.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def lines_of(form, use, level="info"):
    stream = io.StringIO()
    configure_logging(form, level, stream)
    with serve() as served:
        use(served)
        wait_until(lambda: served.runtime.admission.in_use == 0)
    return stream.getvalue().splitlines()


def test_json_lines():
    def use(served):
        headers = {"x-request-id": "mine"}
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 3}}
        served.client.post("/generate?secret=1", json=body, headers=headers)
        served.client.post("/generate", json={"inputs": PROMPT, "parameters": {"top_k": 0}})

    found = [json.loads(line) for line in lines_of("json", use)]
    done, refused = [line for line in found if line["logger"] == "engram.access"]
    assert (done["id"], done["method"], done["route"]) == ("mine", "POST", "/generate")
    assert (done["status"], done["generated_tokens"], done["finish_reason"]) == (200, 3, "length")
    assert {"duration_s", "queue_s", "prefill_s", "decode_s", "tokenize_s", "prompt_tokens"} <= set(
        done
    )
    assert refused["status"] == 422
    assert PROMPT not in json.dumps(found)
    assert "secret" not in json.dumps(found)


def test_text_lines():
    def use(served):
        served.stream(PROMPT, max_new_tokens=2)
        served.client.get("/no%0Asuch")

    lines = lines_of("text", use)
    (stream,) = [line for line in lines if "route=/generate_stream" in line]
    assert "INFO engram.access request id=" in stream
    assert "status=200" in stream
    assert "generated_tokens=2" in stream
    assert PROMPT not in "".join(lines)
    assert any("route=other status=404" in line for line in lines)
    assert any("engram.lifecycle ready device=cpu" in line for line in lines)


def test_errors_carry_their_traceback():
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    try:
        raise RuntimeError("x")
    except RuntimeError as error:
        logging.getLogger("engram.error").error("bad", exc_info=error)
        logging.getLogger("uvicorn.error").error("worse", exc_info=error)
    ours, theirs = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert "RuntimeError: x" in ours["exception"]
    assert (theirs["logger"], theirs["message"]) == ("uvicorn.error", "worse")


def test_the_level_is_honoured():
    assert lines_of("text", lambda served: served.generate(), level="error") == []
