"""The experiment as a picture: per backing, what each arm computes and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib
from matplotlib.axes import Axes

from benchmarks.three_arm.result import Result

COMPUTE, EXPOSED = "#2b6cb0", "#dd6b20"
PANEL_INCHES = (4.6, 2.4)


def draw(results: Sequence[Result], path: Path) -> None:
    """Write a PNG with one panel for each result."""
    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 - only after the backend is chosen

    columns = min(len(results), 2)
    rows = -(-len(results) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    panels = axes.ravel().tolist()
    for panel, result in zip(panels, results, strict=False):
        _draw_result(panel, result)
    for panel in panels[len(results) :]:
        panel.set_axis_off()
    panels[0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_result(panel: Axes, result: Result) -> None:
    names = list(result.series)[::-1]  # arm 0 on top
    exposed = [1e3 * median(result.series[name].exposed_s) for name in names]
    totals = [1e3 * median(result.series[name].total_s) for name in names]
    compute = [total - wait for total, wait in zip(totals, exposed, strict=True)]
    labels = [f"{name} ({result.dtypes[name]})" for name in names]
    panel.barh(labels, compute, color=COMPUTE, label="compute")
    panel.barh(labels, exposed, left=compute, color=EXPOSED, label="waiting for rows")
    panel.set_title(f"tables: {result.backing}", fontsize=9, loc="left")
    panel.set_xlabel("ms per request", fontsize=8)
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
