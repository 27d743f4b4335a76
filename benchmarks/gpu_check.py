"""`python -m benchmarks.gpu_check`: is this device right, and how fast? Under five minutes.

For a host with an accelerator; needs torch, transformers, numpy and safetensors, no web framework
and no download: weights and tables are random, in real shapes. Prints whether greedy float32 tokens
equal the CPU's, how much of the lookups is hidden, and tokens per second with the tables in device
and in host memory, with and without a hot cache on the device, with decode steps as graphs and
eager. docs/deploy.md says how to read it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine_run import EngineRun
from benchmarks.lookup_times import LookupTimes
from benchmarks.random_model import CHECKED, SHAPES, NumberTokenizer, RandomModel, random_memory
from benchmarks.report import environment, table, write_json
from engram_core.device import Device, make_device
from engram_core.device_placement import cache_on_device
from engram_core.device_trial import try_cache
from engram_core.errors import DeviceError
from engram_core.memory_config import MemoryConfig
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach
from engram_core.stats import Phase
from engram_core.store.base import Tier
from engram_core.store.device_cache import DeviceCache
from engram_core.store.device_table import DeviceTable
from engram_core.store.host import HostTier
from engram_core.version import MemoryVersion
from server.engine.engine import Engine
from server.engine.limits import EngineLimits
from server.engine.tuning import GraphMode, Tuning
from server.engine.types import Recorder, TokenLogprob

NEAR_TIE = 1e-4  # a token may differ where the two likeliest are closer than this, in float32
STOP_S = 30.0
MEMORIES = ("none", "host", "host, hot cache", "device")
CACHED = MemoryConfig(device_cache="on")
TRIAL_TOKENS = 32
MODES: tuple[GraphMode, ...] = ("auto", "off")
PHASES: tuple[Phase, ...] = ("prefill", "decode")
RATES = ["tables", "sequences", "graphs tok/s", "eager tok/s", "graphs / eager"]
OVERLAP = ["phase", "lookups", "lookup ms", "exposed wait ms", "hidden"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run."""

    prompt_tokens: int
    new_tokens: int
    repeats: int
    batches: tuple[int, ...]
    table_rows: int
    checked_tokens: int


QUICK = Plan(12, 8, 1, (1, 3), 2**12, 6)
FULL = Plan(64, 64, 3, (1, 8, 32), 2**21, 24)


@contextmanager
def running(
    recipe: RandomModel,
    device: Device,
    version: MemoryVersion | None,
    recorder: Recorder,
    *,
    graphs: GraphMode = "auto",
    max_num_seqs: int = 32,
) -> Iterator[Engine]:
    """A started engine over a model of its own, with `version` attached."""
    gc.collect()  # what an earlier engine's model held
    model = recipe.build()
    prefetcher = None
    if version is not None:
        dtype = torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float32
        prefetcher = Prefetcher(device, dtype=dtype)
        attach(model, version)
    limits = EngineLimits(max_num_seqs=max_num_seqs, max_model_len=1024, block_size=32)
    tokenizer = NumberTokenizer(model.config.vocab_size)
    tuning = Tuning(graphs=graphs)
    engine = Engine(
        model, tokenizer, version, prefetcher, limits, recorder, device=device, tuning=tuning
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(STOP_S)
        if prefetcher is not None:
            prefetcher.close()


def make_prompts(vocabulary: int, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (n,), generator=generator).tolist() for n in lengths]


# --- equality ---


def check_equality(shape: str, device: Device, plan: Plan) -> list[dict[str, Any]]:
    """Greedy float32 tokens of the device, eager and as graphs, beside the CPU's."""
    torch.set_float32_matmul_precision("highest")
    cpu = make_device("cpu")
    change = CHECKED.get(shape, {})
    host = RandomModel(shape, torch.float32, cpu.torch_device, cpu.torch_device, change)
    prompts = make_prompts(host.config.vocab_size, (5, 17, 33, plan.prompt_tokens))
    expected = _greedy(host, cpu, prompts, plan, "off")
    moved = replace(host, device=device.torch_device)
    modes: list[GraphMode] = ["off", "auto"] if device.supports_graphs else ["off"]
    return [
        {
            "decode": ("eager" if mode == "off" else "graphs") + (", hot cache" if cached else ""),
            **compare_tokens(expected, _greedy(moved, device, prompts, plan, mode, cached=cached)),
        }
        for cached in ([False] if device.shares_host_memory else [False, True])
        for mode in modes
    ]


def _greedy(
    recipe: RandomModel,
    device: Device,
    prompts: list[list[int]],
    plan: Plan,
    graphs: GraphMode,
    *,
    cached: bool = False,
) -> list[list[TokenLogprob]]:
    """The tokens of each prompt, generated side by side."""
    version = random_memory(recipe, plan.table_rows // 8, HostTier)
    if cached:
        version = cache_on_device(version, device, CACHED)
    with running(recipe, device, version, LookupTimes(), graphs=graphs) as engine:
        return EngineRun(engine, prompts, plan.checked_tokens).tokens


def compare_tokens(
    expected: Sequence[Sequence[TokenLogprob]], found: Sequence[Sequence[TokenLogprob]]
) -> dict[str, int]:
    """Tokens that are equal up to each sequence's first difference, and what that difference is.

    Two tokens are a near tie when both runs found nearly the same best log-probability.
    """
    counts = {"tokens": 0, "equal": 0, "near_ties": 0, "wrong": 0}
    for ours, theirs in zip(found, expected, strict=True):
        counts["tokens"] += len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            if one.id != other.id:
                gap = abs((one.logprob or 0.0) - (other.logprob or 0.0))
                counts["near_ties" if gap < NEAR_TIE else "wrong"] += 1
                break  # from here on the histories differ
            counts["equal"] += 1
    return counts


# --- speed ---


def make_version(
    place: str, recipe: RandomModel, device: Device, plan: Plan
) -> MemoryVersion | None:
    """The memory with tables in one of `MEMORIES`; None for ``"none"``."""

    def make_tier(rows: torch.Tensor) -> Tier:
        is_device = place == "device"
        return DeviceTable(rows.to(device.torch_device)) if is_device else HostTier(rows)

    if place == "none":
        return None
    version = random_memory(recipe, plan.table_rows, make_tier)
    return version if place in ("host", "device") else cache_on_device(version, device, CACHED)


def measure(
    recipe: RandomModel, device: Device, plan: Plan, deadline_s: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Rates of every place of the tables, the overlap of tables in host memory, the hot caches."""
    rates: list[dict[str, Any]] = []
    overlap: list[dict[str, Any]] = []
    caches: list[dict[str, Any]] = []
    for place in MEMORIES:
        if "cache" in place and device.shares_host_memory:
            continue
        version = make_version(place, recipe, device, plan)
        if place == "host" and version is not None:
            overlap = measure_overlap(recipe, device, version, plan)
        for sequences in plan.batches:
            if time.monotonic() > deadline_s:
                say(f"no time left for tables: {place}, sequences: {sequences}")
                continue
            graphs, eager = (
                _rate(recipe, device, version, plan, sequences, mode) for mode in MODES
            )
            rates.append(
                {"tables": place, "sequences": sequences, "graphs": graphs, "eager": eager}
            )
        caches += describe_caches(version, device)
        del version
        gc.collect()
    return rates, overlap, caches


def describe_caches(version: MemoryVersion | None, device: Device) -> list[dict[str, Any]]:
    """Each layer's cache on the device: what it kept, and what a lookup takes with and without."""
    found = []
    for layer, tier in version.tiers.items() if version is not None else ():
        if isinstance(tier, DeviceCache) and version is not None:
            trial = try_cache(tier.inner, device, TRIAL_TOKENS * version.served.num_columns)
            facts = {"capacity_rows": tier.capacity_rows, "bytes": tier.nbytes}
            counts = {"admissions": tier.admissions, "evictions": tier.evictions}
            found.append(
                {"layer": layer, **facts, **counts, "hit_rate": tier.hit_rate, **asdict(trial)}
            )
    return found


def _rate(
    recipe: RandomModel,
    device: Device,
    version: MemoryVersion | None,
    plan: Plan,
    sequences: int,
    graphs: GraphMode,
) -> float | None:
    """Median decoded tokens per second; None where there are no graphs."""
    if graphs == "auto" and not device.supports_graphs:
        return None
    prompts = make_prompts(recipe.config.vocab_size, [plan.prompt_tokens] * sequences)
    with running(recipe, device, version, LookupTimes(), graphs=graphs) as engine:
        EngineRun(engine, prompts, plan.new_tokens)  # captures graphs, warms caches
        runs = [EngineRun(engine, prompts, plan.new_tokens) for _ in range(plan.repeats)]
        if graphs == "auto" and not engine.status().decode_path.startswith("graphs"):
            say(engine.status().decode_path)
            return None
    return median(each.times.decode_rate() for each in runs)


def measure_overlap(
    recipe: RandomModel, device: Device, version: MemoryVersion, plan: Plan
) -> list[dict[str, Any]]:
    """Lookups and waits while prompts arrive faster than they are served."""
    times = LookupTimes()
    prompts = make_prompts(recipe.config.vocab_size, [4 * plan.prompt_tokens] * 8, seed=1)
    with running(recipe, device, version, times, max_num_seqs=4) as engine:
        EngineRun(engine, prompts, plan.new_tokens)
    return [found for phase in PHASES if (found := times.summary(phase)) is not None]


# --- what is printed ---


def report_equality(results: Sequence[dict[str, Any]]) -> bool:
    """Print the comparison; whether nothing was wrong."""
    for found in results:
        verdict = "WRONG" if found["wrong"] else "ok"
        say(
            f"{verdict:5} {found['decode']}: {found['equal']} of {found['tokens']} float32 tokens "
            f"equal the CPU's, {found['near_ties']} near ties, {found['wrong']} wrong"
        )
    return not any(found["wrong"] for found in results)


def report_overlap(results: Sequence[dict[str, Any]]) -> None:
    """Print how much of the lookups in host memory compute did not wait for."""
    rows = [
        [
            found["phase"],
            str(found["lookups"]),
            f"{found['lookup_ms']:.1f}",
            f"{found['exposed_wait_ms']:.1f}",
            f"{found['hidden_fraction']:.0%}",
        ]
        for found in results
    ]
    say(table(OVERLAP, rows))


def report_rates(results: Sequence[dict[str, Any]]) -> None:
    """Print tokens per second."""
    rows = []
    for found in results:
        graphs, eager = found["graphs"], found["eager"]
        ratio = "" if graphs is None else f"{graphs / eager:.2f}"
        shown = "" if graphs is None else f"{graphs:.1f}"
        rows.append([found["tables"], str(found["sequences"]), shown, f"{eager:.1f}", ratio])
    say(table(RATES, rows))


def report_caches(results: Sequence[dict[str, Any]]) -> None:
    """Print what the caches on the device did; these rows are random, a text's repeat more."""
    if not results:
        say("hot cache: none, rows need no copy to this device")
    for found in results:
        say(
            f"hot cache of layer {found['layer']}: {found['hit_rate']:.0%} hits in "
            f"{found['capacity_rows']} slots, {found['admissions']} admissions, "
            f"{found['evictions']} evictions; {found['num_rows']} rows, two thirds of them hot, "
            f"take {1e3 * found['cached_s']:.2f} ms with it and {1e3 * found['plain_s']:.2f} ms "
            "without"
        )


def run(args: argparse.Namespace) -> int:
    """All parts; 0 when the tokens are right."""
    started_s = time.monotonic()
    device = make_device(args.device)
    plan = QUICK if args.quick or args.shape == "tiny" else FULL
    say(f"{describe(device)}; shape {args.shape}; {device.memory()[0] / 2**30:.1f} GiB free")
    equality = check_equality(args.shape, device, plan)
    is_right = report_equality(equality)
    place = device.torch_device
    recipe = RandomModel(args.shape, torch.bfloat16, place, place)
    rates, overlap, caches = measure(recipe, device, plan, started_s + args.budget)
    report_overlap(overlap)
    report_rates(rates)
    report_caches(caches)
    seconds = time.monotonic() - started_s
    say(f"{seconds:.0f} s")
    facts = {"device": describe(device), "shape": args.shape, "seconds": seconds}
    results = {"equality": equality, "overlap": overlap, "rates": rates, "hot_cache": caches}
    write_json(args.output, {**facts, "environment": environment(), **results})
    return 0 if is_right else 1


def describe(device: Device) -> str:
    """The device's name, with the hardware's own where torch knows it."""
    kind = device.torch_device.type
    backend = getattr(torch, kind, None) if kind != "cpu" else None
    name = getattr(backend, "get_device_name", None)
    return device.name if name is None else f"{device.name} ({name(device.torch_device)})"


def say(line: str) -> None:
    """Print now: whoever waits for minutes wants to see where it is."""
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Check one device; the exit status is 0 when its tokens equal the CPU's."""
    args = _parser().parse_args(argv)
    try:
        return run(args)
    except DeviceError as error:
        say(f"FAIL  {error}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm2")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N, npu, npu:N, cpu, "
                        "simulated")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few tokens and small tables")
    parser.add_argument("--budget", type=float, default=200.0,
                        help="seconds after which no further row is begun")  # fmt: skip
    parser.add_argument("--output", type=Path, help="where the JSON report goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
