"""The default model with its shipped memory: the engine says what `generate()` says, in float32."""

import pytest
import torch
from engines import Client, make_engine

from engram_core.device import make_device
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from server.config import Settings
from server.loader import load

NEW_TOKENS = 10
PROMPTS = (
    "The capital of Botswana is",
    "Theodor Mommsen was born in",
    "The genus Deinonychus belongs to the family",
    "def fibonacci(n):\n    ",
    "白日依山尽",
    "Once upon a time 🙂 there was",
)


@pytest.fixture(scope="module")
def loaded(default_model):
    return load(Settings(model=str(default_model), dtype="float32"))


@pytest.fixture(scope="module")
def spliced(loaded):
    for module in loaded.version.modules.values():
        module.float()
    with attach(loaded.model, loaded.version):
        yield loaded


@pytest.fixture(scope="module")
def prompts(loaded):
    """16 prompts of different lengths, one of them longer than a step's budget."""
    texts = [PROMPTS[i % len(PROMPTS)] for i in range(15)]
    ids = [loaded.tokenizer(f"{i}. {text}" if i >= 6 else text).input_ids
           for i, text in enumerate(texts)]  # fmt: skip
    return [*ids, loaded.tokenizer("All of this was said before. " * 12).input_ids]


@pytest.fixture(scope="module")
def expected(spliced, prompts):
    """What transformers' generate() answers, with the top-2 gap of every step."""
    answers = []
    for ids in prompts:
        out = spliced.model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS, do_sample=False, output_logits=True,
            return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
        gaps = [float(-torch.topk(step[0], 2).values.diff()) for step in out.logits]
        answers.append((out.sequences[0, len(ids) :].tolist(), gaps))
    return answers


@pytest.fixture(scope="module")
def client(spliced, expected):  # expected first: the engine switches the model's attention
    prefetcher = Prefetcher(make_device("cpu"))
    engine = make_engine(
        spliced.model, version=spliced.version, prefetcher=prefetcher,
        tokenizer=spliced.tokenizer, max_model_len=256, max_num_batched_tokens=32,
        max_num_seqs=16, kv_cache_bytes=None,
    )  # fmt: skip
    engine.start()
    yield Client(engine)
    engine.stop(5)
    prefetcher.close()


def assert_same(found, expected):
    tokens, gaps = expected
    if found == tokens:
        return
    place = next(i for i, (a, b) in enumerate(zip(found, tokens, strict=True)) if a != b)
    assert gaps[place] < 1e-4, f"token {place}: {found} instead of {tokens}"


def test_alone(client, prompts, expected):
    for ids, answer in list(zip(prompts, expected, strict=True))[:3]:
        assert_same(client.generate(ids, NEW_TOKENS).token_ids, answer)


def test_in_a_mixed_batch_of_16_with_chunked_prefill(client, prompts, expected):
    streams = [client.submit(ids, NEW_TOKENS) for ids in prompts]
    for stream, answer in zip(streams, expected, strict=True):
        assert_same(stream.wait().token_ids, answer)


def test_the_memory_knows_what_the_backbone_does_not(client, loaded):
    from server.engine.types import EngramParams

    ids = loaded.tokenizer(PROMPTS[0]).input_ids
    on = client.generate(ids, 6).text
    off = client.generate(ids, 6, engram=EngramParams(enabled=False)).text
    assert on.startswith(" Gaborone.")
    assert not off.startswith(" Gaborone")
