from pathlib import Path

import pytest
import torch
from model_folder import TOKENIZER, write_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.contender import UnavailableError
from benchmarks.contenders.generate import GenerateContender
from benchmarks.contenders.llama_cpp import _groups, open_llama_cpp
from benchmarks.decode import LIBRARIES
from benchmarks.prompt_source import PromptSource

ROOT = Path(__file__).parents[2]


def test_prompts_are_grouped_into_calls() -> None:
    prompts = [[0] * size for size in (4, 4, 3, 10, 1)]
    assert list(_groups(prompts, 10)) == [[0, 1], [2], [3], [4]]
    with pytest.raises(ValueError, match="has 11 tokens; accepted: at most 10"):
        list(_groups([[0] * 11], 10))


def test_a_folder_without_libraries_is_named(tmp_path) -> None:
    with (
        pytest.raises(UnavailableError, match=r"no libraries found in .*`make llama-cpp`"),
        open_llama_cpp(tmp_path, tmp_path, "bf16", num_seqs=1, seq_tokens=8, threads=1),
    ):
        pass


def test_something_else_with_that_name_is_refused(tmp_path) -> None:
    model = write_model(tmp_path / "model")
    for name in ("libggml-base.so", "libggml.so", "libllama.so"):
        (tmp_path / name).write_bytes(b"no library")
    with (
        pytest.raises(UnavailableError, match=r"llama\.cpp: .*libggml-base\.so"),
        open_llama_cpp(tmp_path, model, "bf16", num_seqs=1, seq_tokens=8, threads=1),
    ):
        pass


@pytest.mark.skipif(not (ROOT / LIBRARIES).is_dir(), reason="`make llama-cpp` was not run")
def test_llama_cpp_answers_as_transformers_in_float32(tmp_path) -> None:
    folder = write_model(tmp_path / "model")
    prompts = PromptSource(AutoTokenizer.from_pretrained(TOKENIZER)).take(3, 24)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = GenerateContender(model).run(prompts, 6)
    libraries = ROOT / LIBRARIES
    with open_llama_cpp(
        libraries, folder, "fp32", num_seqs=3, seq_tokens=64, threads=2
    ) as contender:
        for _ in range(2):
            run = contender.run(prompts, 6)
            assert run.token_ids == expected.token_ids
            assert [len(times) for times in run.token_times_s] == [6, 6, 6]
