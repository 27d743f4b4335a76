"""The experiment: writes the tables, opens a backing, checks that arms agree, measures."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bounded_pages import BoundedPages
from benchmarks.documents import TokenIds, TokenRequests
from benchmarks.three_arm.arm import Arm
from benchmarks.three_arm.arms import Arms, warm
from benchmarks.three_arm.article import article_arms
from benchmarks.three_arm.backings import Backing, open_dram, open_rows, open_ssd, packed_tables
from benchmarks.three_arm.measure import Rounds, Series, measure
from benchmarks.three_arm.peer import Peer, check, open_peer
from benchmarks.three_arm.result import Result
from benchmarks.three_arm.shape import demo_config, write_memory
from engram_core.assembly import open_version
from engram_core.compression import TokenCompressor
from engram_core.device import Device
from engram_core.tables import Artefact

OPEN = {"dram": open_dram, "ssd": open_ssd, "remote": open_rows}
NO_PEER = "ssd: engramdb is not installed and was left out (pip install 'engram-server[bench]')"
# arms round differently in bfloat16: products in other orders, norms in other dtypes
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.02}


@dataclass(slots=True)
class Experiment:
    """What all measurements share.

    Attributes:
        folder: for tables. compressor: of the tokenizer. source: of the requests.
        device: where arms compute. rounds: how many. warm_up: requests that caches meet before.
        table_bytes: of each layer's table in DRAM or with row servers; None: as many as the demo
            has. ssd_bytes: of one that stays in its file.
    """

    folder: Path
    compressor: TokenCompressor
    source: TokenRequests
    device: Device
    rounds: Rounds
    warm_up: int
    table_bytes: float | None
    ssd_bytes: float

    def run(self, backing: str, dtype_name: str) -> Result:
        """Measure all arms of one backing.

        Raises:
            SystemExit: there is too little text, or too little room for the tables.
            RuntimeError: two arms disagree about the answer.
        """
        _say(f"{backing}, {dtype_name}")
        dtype: torch.dtype = getattr(torch, dtype_name)
        artefact, folder = self._memory("large" if backing == "ssd" else "demo")
        with OPEN[backing](artefact, folder, self.compressor) as opened:
            arms = Arms(opened, self.device, dtype)
            made = arms.make()
            source = self.source.from_start()
            arms.warm_up(source.take(self.warm_up))
            check_answers(made, source.take(1)[0])
            peer = self._peer(artefact) if backing == "ssd" else None
            if peer is not None:
                made.append(arms.peer(peer.name, peer.gather(dtype)))
            opened.unmap()
            pages = BoundedPages(opened.files)
            others = BoundedPages(peer.files if peer is not None else ())

            def chill() -> None:
                pages.after_run()
                others.after_run()
                opened.unmap()
                pages.before_run()
                others.before_run()

            series = measure(made, source, self.rounds, chill)
            pages.after_run()
            others.after_run()
            for arm in made:
                arm.lookups.close()
            found = _result(opened, made, series, pages)
        gc.collect()  # gigabytes
        if backing != "ssd":
            return found
        return found.with_sentence(NO_PEER if peer is None else _peer_pages(peer, others))

    def article(self) -> dict[str, Series]:
        """The arms in the article's regime; see `article`."""
        artefact, _ = self._memory("demo")
        version = open_version(artefact, self.compressor)
        arms, caches = article_arms(version, self.device)
        source = self.source.from_start()
        for token_ids in source.take(self.warm_up):
            for cache, layer in caches:
                warm(cache, version.hasher.row_ids(token_ids, layer))
        return measure(arms, source, self.rounds, lambda: None)

    def _memory(self, name: str) -> tuple[Artefact, Path]:
        config = demo_config(self.ssd_bytes if name == "large" else self.table_bytes)
        folder = self.folder / name
        return write_memory(folder, self.compressor, config), folder

    def _peer(self, artefact: Artefact) -> Peer | None:
        tables = packed_tables(artefact)
        peer = open_peer(tables, self.folder / "engramdb")
        if peer is not None:
            check(peer, tables)
        return peer


def check_answers(arms: Sequence[Arm], token_ids: TokenIds) -> None:
    """Refuse to compare arms that compute different things.

    Raises:
        RuntimeError: an arm's answer is not arm 0's, but for rounding.
    """
    expected = arms[0].answer(token_ids)
    for arm in arms[1:]:
        error = float((arm.answer(token_ids) - expected).norm() / expected.norm())
        if error > TOLERANCE[arm.dtype]:
            raise RuntimeError(f"arm {arm.name} differs from arm 0 by {error:.2g}")


def _result(
    backing: Backing, arms: Sequence[Arm], series: dict[str, Series], pages: BoundedPages
) -> Result:
    return Result(
        backing=backing.name,
        dtypes={arm.name: str(arm.dtype).removeprefix("torch.") for arm in arms},
        series=series,
        why_auto=backing.auto.why_tiers,
        resident=(pages.largest_before, pages.largest_after) if backing.files else None,
    )


def _peer_pages(peer: Peer, pages: BoundedPages) -> str:
    return (
        f"ssd: of {peer.name}'s own file {pages.largest_before:.2%} lay there before a turn and "
        f"{pages.largest_after:.2%} after it, at most"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
