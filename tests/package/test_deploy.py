"""What deploy/ says of the server is so: its options, its addresses, the names of its metrics."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from gpt2fast.cli import _parser

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

#: Of prometheus_client's own collector.
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def commands():
    docker = (DEPLOY / "Dockerfile").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", docker, re.M)[1])
    composed = json.loads(re.search(r"^    command: (.*)$", (DEPLOY / "compose.yaml").read_text(), re.M)[1])
    service = (DEPLOY / "gpt2fast.service").read_text()
    started = shlex.split(re.search(r"^ExecStart=(.*)$", service, re.M)[1])
    return {"container": entry, "compose": entry + composed, "service": ["gpt2fast", *started[1:-1]]}


@pytest.mark.parametrize("where", commands())
def test_the_server_takes_these_options(where):
    program, *arguments = commands()[where]
    assert program == "gpt2fast"
    options = _parser().parse_args(arguments)
    assert options.port == 8000


def test_the_dashboard_shows_what_the_server_counts():
    prometheus = pytest.importorskip("prometheus_client.parser")
    from gpt2fast.server.metrics import Metrics

    metrics = Metrics(inside=lambda: 0, running=lambda: 0, held=lambda: 0)
    known = set(PROCESS)
    for family in prometheus.text_string_to_metric_families(metrics.render().decode()):
        known |= {family.name, f"{family.name}_total", *(sample.name for sample in family.samples)}
        if family.type == "histogram":
            known.add(f"{family.name}_bucket")
    panels = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"\b(?:gpt2fast|process)_\w+", expression)}
    assert len(asked) > 8
    assert names <= known, f"the server has no {sorted(names - known)}"
