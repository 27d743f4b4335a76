import torch
from models import random_memory, tiny_llama

from benchmarks.contenders.generate import GenerateContender
from engram_core.splice import attach

PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12]]


def test_every_sequence_gets_as_many_tokens_as_asked_for() -> None:
    run = GenerateContender(tiny_llama()).run(PROMPTS, new_tokens=6)
    assert [len(ids) for ids in run.token_ids] == [6, 6]
    assert [len(times) for times in run.token_times_s] == [6, 6]
    assert run.start_s < run.token_times_s[0][0] < run.token_times_s[0][-1]


def test_it_generates_greedily() -> None:
    model = tiny_llama()
    run = GenerateContender(model).run(PROMPTS, new_tokens=3)
    ids = torch.tensor(PROMPTS)
    for step in range(3):
        next_ids = model(ids).logits[:, -1].argmax(-1, keepdim=True)
        assert next_ids[:, 0].tolist() == [answer[step] for answer in run.token_ids]
        ids = torch.cat([ids, next_ids], dim=1)


def test_an_attached_memory_changes_the_answer() -> None:
    model = tiny_llama()
    plain = GenerateContender(model).run(PROMPTS, new_tokens=8)
    with attach(model, random_memory(model)):
        spliced = GenerateContender(model).run(PROMPTS, new_tokens=8)
    assert plain.token_ids != spliced.token_ids
