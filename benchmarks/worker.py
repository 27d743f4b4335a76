"""One contender in a process of its own: opens it, says hello, then runs what it is given."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any, TextIO

import torch

from benchmarks.catalogue import Surroundings, local_contenders
from benchmarks.contender import UnavailableError


def main() -> None:
    """Serve the contender named by the first argument until stdin ends."""
    answers = keep_stdout()
    key, around = sys.argv[1], Surroundings.from_json(sys.argv[2])
    torch.set_num_threads(around.threads)
    try:
        with local_contenders(around)[key]() as contender:
            facts = {name: getattr(contender, name) for name in ("name", "bits", "has_memory")}
            say(answers, facts)
            for line in sys.stdin:
                job = json.loads(line)
                say(answers, asdict(contender.run(job["prompts"], job["new_tokens"])))
    except UnavailableError as error:
        say(answers, {"unavailable": str(error)})


def keep_stdout() -> TextIO:
    """The real stdout, for answers alone; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def say(answers: TextIO, answer: dict[str, Any]) -> None:
    """Write an answer, a line of JSON."""
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
