"""The Grafana dashboard asks for metrics that exist, in expressions that Prometheus reads."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from sources import ROOT

from server.metric_table import ALL_METRICS, HOT_CACHE_METRICS, ROW_SERVER_METRICS

DASHBOARD = json.loads((ROOT / "configs" / "grafana" / "memory.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
ASKED = {name for each in EXPRESSIONS for name in re.findall(r"engram_\w+", each)}


def test_it_asks_for_metrics_that_exist() -> None:
    known = {spec.name for spec in ALL_METRICS if spec.kind != "histogram"}
    for spec in ALL_METRICS:
        if spec.kind == "histogram":
            known |= {f"{spec.name}_{part}" for part in ("bucket", "sum", "count")}
    assert known >= ASKED


def test_it_shows_every_tier_metric() -> None:
    wanted = {spec.name for spec in (*HOT_CACHE_METRICS, *ROW_SERVER_METRICS)}
    assert wanted | {"engram_memory_tier_info", "engram_prefetch_audit_rows_total"} <= ASKED


def test_panels_are_told_apart_and_explained() -> None:
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(titles)
    assert all(panel["description"] for panel in PANELS)
    by_place = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]}
    assert len(by_place) == len(titles)


@pytest.mark.system
def test_prometheus_reads_every_expression(tmp_path) -> None:
    assert shutil.which("promtool"), "needs promtool (Debian: prometheus)"
    rules = [
        {"record": f"dashboard:{index}", "expr": each.replace("$__rate_interval", "5m")}
        for index, each in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
