"""The table as a picture: one panel per row, one bar per contender."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes

from benchmarks.comparison import Comparison

COLOURS = {"engine": "#2b6cb0", "engram-server HTTP": "#63a4d8"}
OTHER = "#b0b7bf"
PANEL_INCHES = (4.2, 2.6)


def draw(results: Sequence[tuple[str, Comparison]], path: Path) -> None:
    """Write a PNG; whiskers span the slowest and the fastest round."""
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 - only after the backend is chosen

    columns = min(len(results), 2) or 1
    rows = -(-len(results) // columns) or 1
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    panels = axes.ravel().tolist()
    for panel, (name, found) in zip(panels, results, strict=False):
        _draw_row(panel, name, found)
    for panel in panels[len(results) :]:
        panel.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_row(panel: Axes, name: str, found: Comparison) -> None:
    entries = found.entries[::-1]  # the first on top
    names = [entry.name for entry in entries]
    medians = [entry.median for entry in entries]
    below = [entry.median - min(entry.rates) for entry in entries]
    above = [max(entry.rates) - entry.median for entry in entries]
    colours = [COLOURS.get(each, OTHER) for each in names]
    panel.barh(names, medians, xerr=[below, above], color=colours, error_kw={"lw": 0.8})
    panel.set_title(name, fontsize=9, loc="left")
    panel.set_xlabel("tokens / s", fontsize=8)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
