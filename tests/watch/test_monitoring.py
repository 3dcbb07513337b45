"""docs/examples/monitoring: every metric, label and value that dashboard and alerts name is one that is exported, and
the alerts have the thresholds and words of the report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors.finding import DETECTORS
from kcoord_wire.forensics.detectors.rebalances import COMPLETING_MS, PREPARING_MS, STORM_CRITICAL, STORM_THRESHOLD
from kcoord_wire.kernel.metrics import Exporter
from kcoord_wire.watch.groups import STATES, Snapshot, WatchMetrics

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "monitoring"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
VALUES = {
    "state": {*STATES},
    "cause": {cause.value for cause in Cause},
    "why": {"left", "session timeout", "rebalance timeout", "sync timeout", "group.max.size"},
    "outcome": {"committed", "aborted", "fenced", "timed out"},
    "error": {"NONE"},
}
"""Of labels with few values, those that there are; of `kcoord_transactions_ended_total` the outcomes."""


def exported() -> dict[str, set[str]]:
    """The labels of each sample that can be scraped."""
    snapshot = Snapshot(answered_ns=1)
    exporters: tuple[Exporter, ...] = (Metrics(), WatchMetrics(lambda: snapshot))
    return {
        each.name + suffix: {*each._labelnames, *({"le"} if suffix == "_bucket" else ())}
        for exporter in exporters
        for each in exporter.collect()
        for suffix in SUFFIXES[each.type]
    }


def dashboard() -> Any:
    return json.loads((FOLDER / "dashboard.json").read_text("utf-8"))


def rules() -> list[dict[str, Any]]:
    read = import_module("yaml").safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))
    return [rule for group in read["groups"] for rule in group["rules"]]


def targets() -> list[tuple[str, str]]:
    return [
        (target["expr"], target["legendFormat"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def wrong_names(expression: str, known: Mapping[str, set[str]]) -> Iterator[str]:
    """What a PromQL expression names and nothing exports."""
    labels: set[str] = set()
    for name, selector in re.findall(r"\b(kcoord_\w+)(\{[^}]*\})?", expression):
        if name not in known:
            yield name
        labels |= known.get(name, set())
        for label, operator, value in re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', selector):
            if label not in known.get(name, ()):
                yield f"{name}: {label}"
            if not value.startswith("$"):
                values = value.split("|") if operator in ("=~", "!~") else [value]
                yield from (f"{label}: {each}" for each in values if each not in VALUES.get(label, ()))
    for listed in re.findall(r"\b(?:by|on) ?\(([^)]*)\)", expression):
        yield from (f"by {label}" for label in listed.replace(" ", "").split(",") if label not in labels)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("kcoord_members", []),
        ("kcoord_member", ["kcoord_member"]),
        ("kcoord_requests", ["kcoord_requests"]),
        ('kcoord_groups{stat="Stable"}', ["kcoord_groups: stat", "stat: Stable"]),
        ('kcoord_group_state{state=~"Stable|Stabel"}', ["state: Stabel"]),
        ("sum by (api, why) (kcoord_requests_total)", ["by why"]),
    ],
)
def test_what_is_not_exported_is_found(expression: str, wrong: list[str]) -> None:
    assert list(wrong_names(expression, exported())) == wrong


def test_the_dashboard_names_what_is_exported() -> None:
    known = exported()
    assert [wrong for expression, _ in targets() for wrong in wrong_names(expression, known)] == []
    named = {name for expression, _ in targets() for name in re.findall(r"kcoord_\w+", expression)}
    families = {re.sub("_(total|bucket|sum|count)$", "", name) for name in known}
    shown = {re.sub("_(total|bucket|sum|count)$", "", name) for name in named}
    assert families - shown == set(), "every metric is in a panel"
    for expression, legend in targets():
        labels = {label for name in re.findall(r"kcoord_\w+", expression) for label in known[name]}
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + across, at["y"] + down) for across in range(at["w"]) for down in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_alerts_name_what_is_exported() -> None:
    known, found = exported(), rules()
    assert len(found) == len({rule["alert"] for rule in found}) > 10
    for rule in found:
        assert list(wrong_names(rule["expr"], known)) == []
        assert rule["labels"]["severity"] in ("warning", "critical")
        labels = {label for name in re.findall(r"kcoord_\w+", rule["expr"]) for label in known[name]}
        texts = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_alerts_say_what_the_report_says() -> None:
    of = {rule["alert"]: rule for rule in rules()}
    assert {rule["labels"]["finding"] for rule in of.values() if "finding" in rule["labels"]} <= DETECTORS.keys()
    assert of["ConsumerGroupStuckPreparing"]["for"] == f"{PREPARING_MS // 1000}s"
    assert of["ConsumerGroupStuckCompleting"]["for"] == f"{COMPLETING_MS // 1000}s"
    assert of["ConsumerGroupStorm"]["expr"].endswith(f">= {STORM_THRESHOLD} < {STORM_CRITICAL}")
    assert of["ConsumerGroupStormCritical"]["expr"].endswith(f">= {STORM_CRITICAL}")
    for alert, cause in (
        ("ConsumerGroupStuckCompleting", Cause.SYNC_EXPIRED),
        ("CoordinatorMembersExpired", Cause.SESSION_EXPIRED),
        ("CoordinatorMembersLate", Cause.REBALANCE_TIMEOUT),
    ):
        assert of[alert]["annotations"]["description"] == cause.facts.in_a_storm
