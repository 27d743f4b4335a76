"""Decode steps as graphs, on the simulated device: the same tokens as eager execution."""

import pytest
import torch
from engines import (
    Recording,
    assert_baseline,
    generate_alone,
    make_engine,
    random_prompt,
    running,
)
from fakes.tiers import DelayedTier, FaultyTier
from models import NUM_IDS, random_memory, random_model, tiny_llama
from transformers import AutoConfig

from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.errors import ConfigError, DeviceError
from engram_core.prefetch import Prefetcher
from engram_core.simulated import SimulatedDevice
from engram_core.splice import attach
from server.engine.tuning import Tuning
from server.engine.types import EngramParams

PROMPTS = [random_prompt(3 + 5 * index % 29, seed=index, num_ids=NUM_IDS) for index in range(16)]
LENGTHS = [3 + 7 * index % 23 for index in range(16)]  # they leave one by one
OFF = EngramParams(enabled=False)
INSIST = Tuning(graphs="on")
FORMS = ("v41", "demo")
BASE = {
    "vocab_size": NUM_IDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip
FAMILIES = {
    # with a padding token it looks for padding, except where it sees that CUDA is capturing
    "gpt2": {"pad_token_id": None},
    "gemma2": {"head_dim": 8, "sliding_window": 6},  # two windows, soft caps
    "qwen3_moe": {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
}  # fmt: skip


def make_model():
    return tiny_llama(pad_token_id=1, eos_token_id=0)


def serving(form, *, graphs="auto", wrap=lambda tier: tier, latency_s=0.0, **settings):
    """An engine on the simulated device; without a form it has no memory."""
    model, device = make_model(), SimulatedDevice(latency_s)
    tuning = Tuning(graphs=graphs)
    if form is None:
        return running(model, device=device, tuning=tuning, **settings)
    version = random_memory(model, form=form, orders=(2, 3, 4), wrap=wrap)
    attach(model, version)
    prefetcher = Prefetcher(device, cores=CpuCores(2, "a test"))
    return running(
        model, version=version, prefetcher=prefetcher, device=device, tuning=tuning, **settings
    )


def captured(client):
    """The shapes of the graphs, and whether each reads the memory."""
    graphs = client.engine._runner._graphs
    return [(shape.size, shape.width, version is not None) for shape, version in graphs]


def run_mixed(client):
    """Sixteen requests of different lengths; every third one without the memory."""
    streams = [
        client.submit(prompt, length, ignore_eos=True, engram=OFF if index % 3 == 0 else None)
        for index, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    return [stream.wait().token_ids for stream in streams]


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_seqs": 5},  # they join one by one as well
        {"max_num_batched_tokens": 16},
        {"kv_cache_bytes": 30 * 8 * 4 * 2 * 64},  # preemption
        {"latency_s": 0.001},
    ],
    ids=["whole", "joining", "chunked", "preempted", "slow"],
)
def test_tokens_are_those_of_eager_execution(form, settings):
    with serving(form, graphs="off", **settings) as client:
        assert client.engine.status().decode_path == "eager: graphs are switched off"
        expected = run_mixed(client)
    with serving(form, **settings) as client:
        assert client.engine.status().decode_path.startswith("graphs:")
        assert run_mixed(client) == expected
        sizes = {size for size, _, _ in captured(client)}
        assert sizes <= {1, 2, 4, 5, 8, 16}
        assert len(sizes) > 2


@pytest.mark.parametrize("form", FORMS)
def test_a_long_stream_passes_from_width_to_width(form):
    with serving(form, graphs="off", block_size=4) as client:
        expected = client.generate(PROMPTS[2], 110, ignore_eos=True).token_ids
    with serving(form, block_size=4) as client:
        assert client.generate(PROMPTS[2], 110, ignore_eos=True).token_ids == expected
        assert captured(client) == [(1, 8, True), (1, 16, True), (1, 32, True)]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_plain_generate(form):
    model = make_model()
    with attach(model, random_memory(model, form=form, orders=(2, 3, 4))):
        expected = [generate_alone(model, prompt) for prompt in PROMPTS]
    with serving(form) as client:
        streams = [client.submit(prompt) for prompt in PROMPTS]
        assert [stream.wait().token_ids for stream in streams] == expected


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "qwen3_moe"])
def test_other_families(name):
    config = AutoConfig.for_model(name, **{**BASE, **FAMILIES[name]})
    expected = [generate_alone(random_model(config), prompt) for prompt in PROMPTS[:6]]
    with running(random_model(config), device=make_device("simulated")) as client:
        streams = [client.submit(prompt) for prompt in PROMPTS[:6]]
        assert [stream.wait().token_ids for stream in streams] == expected
        assert captured(client)


def test_all_off_all_on_and_scaled_use_the_right_graph():
    scaled = EngramParams(gate_scale=0.5)
    answers = {}
    for graphs in ("off", "auto"):
        with serving("v41", graphs=graphs) as client:
            for name, engram in (("off", OFF), ("on", None), ("half", scaled), ("again", OFF)):
                answers[graphs, name] = client.generate(PROMPTS[4], engram=engram).token_ids
            has_memory = {memory for _, _, memory in captured(client)}
            assert has_memory == ({True, False} if graphs == "auto" else set())
    assert answers["auto", "off"] == answers["auto", "again"] != answers["auto", "on"]
    for name in ("off", "on", "half"):
        assert answers["auto", name] == answers["off", name]


def test_gates_waits_and_usage_are_reported_as_in_eager_execution():
    usage, lookups = {}, {}
    for graphs in ("off", "auto"):
        recorder = Recording()
        with serving("v41", graphs=graphs, recorder=recorder) as client:
            stream = client.generate(
                PROMPTS[3], 6, ignore_eos=True, engram=EngramParams(per_token=True)
            )
        usage[graphs] = stream
        found = [stats for step in recorder.steps for stats in step.lookups]
        lookups[graphs] = [(stats.layer, stats.phase, stats.rows) for stats in found]
        waits = [stats for step in recorder.steps for stats in step.waits]
        assert len(waits) == len(lookups[graphs]) == 2 * 6
    assert lookups["auto"] == lookups["off"]
    for one, other in zip(usage["auto"].end.engram, usage["off"].end.engram, strict=True):
        assert (one.rows, one.gate_count) == (other.rows, other.gate_count)
        assert one.gate_sum == pytest.approx(other.gate_sum, rel=1e-5)
    for one, other in zip(usage["auto"].tokens, usage["off"].tokens, strict=True):
        assert [m.row_ids for m in one.memory] == [m.row_ids for m in other.memory]
        assert [m.gate for m in one.memory] == pytest.approx([m.gate for m in other.memory])


@pytest.mark.parametrize("form", FORMS)
def test_cancelling_in_the_middle_leaves_nothing_and_disturbs_nobody(form):
    with serving(form, graphs="off") as client:
        expected = [client.generate(p, 40, ignore_eos=True).token_ids for p in PROMPTS[:4]]
    with serving(form, wrap=lambda tier: DelayedTier(tier, 0.001), latency_s=0.0005) as client:
        kept = [client.submit(prompt, 40, ignore_eos=True) for prompt in PROMPTS[:4]]
        for index in range(8):
            gone = client.submit(PROMPTS[4 + index], 60, ignore_eos=True)
            if index % 2:
                gone.next()
                gone.next()
            client.engine.abort(gone.id)
            gone.wait()
        assert [stream.wait().token_ids for stream in kept] == expected
        assert client.engine._inbox.wait_until_empty(10)
        assert_baseline(client.engine)


def test_rows_that_fail_end_their_own_request(caplog):
    tiers = []

    def wrap(tier):
        tiers.append(FaultyTier(tier))
        tiers[-1].broken = False
        return tiers[-1]

    with serving("v41", wrap=wrap) as client:
        good = client.generate(PROMPTS[0]).token_ids
        stream = client.submit(PROMPTS[1], 60, ignore_eos=True)
        stream.next()
        tiers[1].broken = True
        assert stream.wait().failure == "generation"
        tiers[1].broken = False
        assert client.generate(PROMPTS[0]).token_ids == good
        assert client.engine.status().decode_path.startswith("graphs:")


def test_a_model_that_cannot_be_captured_is_served_without_graphs(caplog):
    model = make_model()
    expected = generate_alone(model, PROMPTS[3])
    model.model.layers[2].register_forward_hook(lambda module, args, out: out.sum() and None)
    with running(model, device=make_device("simulated")) as client:
        assert "cannot be captured (" in client.engine.status().decode_path
        assert client.generate(PROMPTS[3]).token_ids == expected
    with pytest.raises(ConfigError, match='graphs is "on"'):
        make_engine(model, device=make_device("simulated"), tuning=INSIST)


def test_a_shape_that_cannot_be_captured_later_ends_graphs_and_no_request(caplog):
    model = make_model()
    expected = [generate_alone(model, prompt) for prompt in PROMPTS[:4]]

    def hook(module, args, out):
        return out.tolist() and out if out.shape[1] == 4 else out

    model.lm_head.register_forward_hook(hook)
    with running(model, device=make_device("simulated")) as client:
        assert client.engine.status().decode_path.startswith("graphs")
        streams = [client.submit(prompt) for prompt in PROMPTS[:4]]
        assert [stream.wait().token_ids for stream in streams] == expected
        assert "cannot be captured (tolist" in client.engine.status().decode_path


@pytest.mark.parametrize(
    ("device", "why"), [(None, "no device has no graphs"), ("cpu", "cpu has no graphs")]
)
def test_devices_without_graphs_say_so(device, why):
    device = device and make_device(device)
    engine = make_engine(make_model(), device=device)
    assert why in engine.status().decode_path
    engine.stop(0)
    with pytest.raises(ConfigError, match="has no graphs"):
        make_engine(make_model(), device=device, tuning=INSIST)


def test_the_oldest_graph_is_dropped_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("server.engine.graphs._MAX_GRAPHS", 2)
    with serving(None) as client:
        expected = run_mixed(client)
        assert len(captured(client)) == 2
        assert run_mixed(client) == expected


def test_a_graph_whose_inputs_are_forgotten_is_found(monkeypatch, caplog):
    monkeypatch.setattr("server.engine.graph_inputs.GraphInputs.fill", lambda self, inputs: None)
    with serving(None) as client:
        assert client.generate(PROMPTS[0]).failure == "generation"
    assert "was not refilled" in caplog.text


def test_rows_read_before_they_are_there_are_found(monkeypatch, caplog):
    monkeypatch.setattr(
        "engram_core.staging.RowLanding.take", lambda self, landed: landed.rows.to(self.dtype)
    )
    with serving("v41", latency_s=0.05) as client:
        assert client.generate(PROMPTS[0]).failure == "generation"
    assert "before the copy that fills it was waited for" in caplog.text


def test_a_staging_buffer_overwritten_under_way_is_found(monkeypatch):
    device = SimulatedDevice(3600)
    staging, target = device.pinned_empty((4,), torch.int64), torch.zeros(4, dtype=torch.int64)
    event = device.copy_async(staging.fill_(1), target, None)
    assert target.tolist() == [1] * 4  # compute is behind the copy
    assert not event.query()
    device = SimulatedDevice(0.001)
    event = device.copy_async(staging.fill_(1), target, None)
    staging.fill_(2)
    with pytest.raises(DeviceError, match="source of a copy was changed"):
        event.wait()
