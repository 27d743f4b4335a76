"""Agreement with float32: what is counted, and over which positions."""

import json

import pytest
from engines import make_engine, random_prompt
from model_folder import write_model
from models import NUM_IDS, tiny_llama

from benchmarks.agreement import BLOCK, judge, main, reference, texts, tokenised
from benchmarks.bootstrap import share_interval
from benchmarks.teacher_forcing import PHASES, TeacherForcing

TEXT = random_prompt(70, num_ids=NUM_IDS)


@pytest.fixture(scope="module")
def expected():
    return reference(tiny_llama(), TEXT, NUM_IDS)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("step", [16, 512])
def test_the_engine_computes_every_position_as_the_model_does(phase, step, expected):
    engine = make_engine(tiny_llama(), max_num_batched_tokens=step)
    teacher = TeacherForcing(engine, NUM_IDS)
    sizes = []
    engine.runner._runner.model.register_forward_pre_hook(
        lambda module, args, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    assert teacher.likeliest(TEXT, phase) == expected
    assert sum(sizes) == len(TEXT)
    assert max(sizes) == (1 if phase == "decode" else min(step, len(TEXT)))
    assert teacher.likeliest(TEXT, phase) == expected  # nothing is left of a text
    engine.stop(0)


def test_padding_of_the_vocabulary_is_never_likeliest(expected):
    few = NUM_IDS // 2
    assert max(expected) >= few
    found = TeacherForcing(make_engine(tiny_llama()), few).likeliest(TEXT, "prefill")
    assert max(found) < few
    assert found == reference(tiny_llama(), TEXT, few)


def test_differences_are_counted_in_their_text_and_in_all():
    expected = {"one": [1] * 60, "two": [2] * 40}
    found = {"one": [1] * 57 + [9] * 3, "two": [9] * 10 + [2] * 30}
    rows = judge("int8", "decode", found, expected)
    assert [(row.text, row.positions, row.share.share) for row in rows] == [
        ("one", 60, 0.95), ("two", 40, 0.75), ("all", 100, 0.87),
    ]  # fmt: skip
    assert all(row.share.low <= row.share.share <= row.share.high for row in rows)
    assert {(row.quantize, row.phase) for row in rows} == {("int8", "decode")}


def test_neighbours_are_drawn_together():
    flags = [index < 50 for index in range(100)]
    apart = share_interval([[flag] for flag in flags])
    together = share_interval([flags[start : start + BLOCK] for start in range(0, 100, BLOCK)])
    assert apart.share == together.share == 0.5
    assert together.high - together.low > apart.high - apart.low > 0
    assert share_interval([[True, True], [True]]).low == 1.0


@pytest.mark.parametrize("blocks", [[], [[True], []]])
def test_a_share_of_nothing_is_refused(blocks):
    with pytest.raises(ValueError, match="at least one flag"):
        share_interval(blocks)


def test_the_command_finds_full_agreement_in_float32(tmp_path, capsys):
    model, report = write_model(tmp_path / "model"), tmp_path / "report.json"
    chosen = ["--dtype", "float32", "--formats", "none", "--positions", "60"]
    assert main(["--model", str(model), *chosen, "--output", str(report)]) == 0
    found = json.loads(report.read_text())
    names = [(row["phase"], row["text"], row["positions"]) for row in found["results"]]
    each = [*((name, 60) for name in texts()), ("all", 180)]
    assert names == [(phase, *row) for phase in PHASES for row in each]
    assert all(row["share"]["share"] == 1.0 for row in found["results"])
    assert found["served"]["none"]["quantize"] == "none"
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(names)


def test_a_text_that_is_too_short_is_named():
    def tokenizer(text, verbose):
        return {"input_ids": list(range(len(text) // 4))}

    assert {len(ids) for ids in tokenised(tokenizer, 300).values()} == {300}
    with pytest.raises(ValueError, match=r"positions is 3000; .*the prose's tokens"):
        tokenised(tokenizer, 3000)
