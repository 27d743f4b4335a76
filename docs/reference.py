"""Writes settings.md and metrics.md from the tables in the code: `python docs/reference.py`.

A test compares the pages with what this renders, so a new setting or metric cannot stay unnamed.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from server.config import Settings  # noqa: E402
from server.flags import accepted, default_note, flag, variable  # noqa: E402
from server.metric_table import ALL_METRICS  # noqa: E402

SETTINGS_INTRO = """# Settings

Every setting is a flag of `engram-server serve`, an environment variable and a key of the
`--config` file (the flag's name without dashes in front). A flag wins over the environment, that
over the file, the file over the default. A value that is not accepted stops the start with one
sentence.
"""
METRICS_INTRO = """# Metrics

`GET /metrics` answers in the Prometheus text format. Times are seconds. The share of lookup time
that compute did not wait for is

    1 - sum(rate(engram_prefetch_wait_seconds_sum[5m]))
      / sum(rate(engram_lookup_duration_seconds_sum[5m]))

with both sums taken first, because the label sets differ. A lookup that ran inline counts with its
whole duration on both sides: it is never hidden.
"""


def settings_page() -> str:
    """The table of all settings."""
    rows = ["| setting | environment | accepted | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        meaning = f"{field.description}{default_note(name)}"
        cells = (f"`{flag(name)}`", f"`{variable(name)}`", accepted(name), meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([SETTINGS_INTRO, *rows, ""])


def metrics_page() -> str:
    """The table of all metrics."""
    rows = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for spec in sorted(ALL_METRICS, key=lambda spec: spec.name):
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        rows.append(f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |")
    return "\n".join([METRICS_INTRO, *rows, ""])


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page}

if __name__ == "__main__":
    for file_name, page in PAGES.items():
        (FOLDER / file_name).write_text(page(), encoding="utf-8")
        print(f"wrote {FOLDER / file_name}")
