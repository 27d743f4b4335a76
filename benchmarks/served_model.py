"""A running server, as a benchmark asks it: answers and prompt log-probabilities over HTTP."""

from __future__ import annotations

from typing import Any, Self

import httpx

TIMEOUT_S = 600.0


class ServedModel:
    """Client of one server's native routes. Thread-safe; use as a context manager.

    Attributes:
        url: base address, for example ``http://127.0.0.1:8000``.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def info(self) -> dict[str, Any]:
        """What the server says about itself (/info)."""
        answer: dict[str, Any] = self._client.get("/info").raise_for_status().json()
        return answer

    def is_ready(self) -> bool:
        """Whether the server takes requests now."""
        try:
            return self._client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def answer(
        self, prompt: str, *, max_new_tokens: int, memory: bool, stop: list[str] | None = None
    ) -> str:
        """The greedy answer, stop string included."""
        parameters = {"max_new_tokens": max_new_tokens, "stop": stop or []}
        parameters["include_stop_str_in_output"] = True
        return str(self._generate(prompt, memory, parameters)["generated_text"])

    def prompt_logprobs(self, prompt: str, *, memory: bool) -> list[float]:
        """Natural log-probability of each prompt token after the first."""
        parameters = {"max_new_tokens": 1, "details": True, "decoder_input_details": True}
        tokens = self._generate(prompt, memory, parameters)["details"]["prefill"]
        return [token["logprob"] for token in tokens[1:]]

    def _generate(self, prompt: str, memory: bool, parameters: dict[str, Any]) -> dict[str, Any]:
        parameters = {**parameters, "do_sample": False, "engram": {"enabled": memory}}
        body = {"inputs": prompt, "parameters": parameters}
        response = self._client.post("/generate", json=body)
        if response.is_error:
            raise RuntimeError(f"{self.url} answered {response.status_code}: {response.text}")
        answer: dict[str, Any] = response.json()
        return answer
