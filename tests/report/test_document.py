"""The HTML file: no network, hostile strings stay data, bounded, deterministic."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.report import to_json
from kcoord_wire.report.page.document import FOLDER, SCRIPTS
from tests.support.histories import HOSTILE, bare, empty, hostile, incident, kip_848, losses, storm, typical
from tests.support.pages import Outline, data_of, page


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_page_makes_no_network_request(tmp_path: Path) -> None:
    outline = Outline(page(tmp_path, [typical(), kip_848()], losses()))
    fetching = {"src", "srcset", "data", "poster", "background", "action", "formaction", "ping"}
    for tag, attributes in outline.elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img", "image", "use", "video"}
        assert not fetching & set(attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert (attributes.get("href") or "#").startswith("#")
    for _, style in outline.all("style"):
        assert "url(" not in style
        assert "@import" not in style


def test_policy_allows_only_the_pages_own_scripts(tmp_path: Path) -> None:
    outline = Outline(page(tmp_path, [typical()]))
    [policy] = [a["content"] or "" for a, _ in outline.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        running = [text for attributes, text in outline.all(tag) if attributes.get("type") != "application/json"]
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
        assert rules[rule].split() == [f"'sha256-{digest}'" for digest in digests]
    assert "unsafe" not in policy
    assert "connect-src" not in rules


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_strings_stay_data(name: str, tmp_path: Path) -> None:
    outline = Outline(page(tmp_path, [typical()], title="t", source="s"))
    text = page(tmp_path, [hostile(name)], losses(name), title=name, source=name)
    attacked = Outline(text)
    assert [tag for tag, _ in attacked.elements] == [tag for tag, _ in outline.elements]
    assert [sorted(attributes) for _, attributes in attacked.elements] == [
        sorted(attributes) for _, attributes in outline.elements
    ]
    shown = strings(data_of(text))
    assert all(string.isprintable() for string in shown)
    assert max(map(len, shown)) <= 1000
    [raw] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not re.search("[<>&\u2028\u2029]", raw)
    if name.isprintable() and len(name) < 60:
        assert name in shown


def test_scripts_never_parse_markup() -> None:
    for name in SCRIPTS:
        script = (FOLDER / name).read_text("utf-8")
        banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|setTimeout\(\"|DOMParser"
        assert not re.search(banned, script), name
        assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon|https?:", script), name


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    texts = [page(tmp_path, order, losses()) for order in ([typical(), bare()], [bare(), typical()])]
    assert texts[0] == texts[1]


def test_a_thousand_rebalances_stay_below_five_megabytes(tmp_path: Path) -> None:
    large = storm()
    text = page(tmp_path, [large])
    assert len(text.encode()) < 5_000_000
    [group] = data_of(text)["groups"]
    assert len(group["rebalances"]) == group["total"] == 1000
    assert len(group["lanes"]) == 200
    assert len(large.ownership) > 100_000
    assert f"{len(large.ownership):,} intervals of ownership" in " ".join(group["cut"])


def test_minimal_and_unknown_values(tmp_path: Path) -> None:
    assert data_of(page(tmp_path, []))["groups"] == []
    data = data_of(page(tmp_path, [empty(), bare(), kip_848(), incident()]))
    groups = {group["id"]: group for group in data["groups"]}
    [only] = groups["bare"]["rebalances"]
    assert only == {
        "n": 1, "start": 1000, "end": 5000, "iso": "2025-11-21 15:00:01.000 UTC", "outcome": "open",
        "cause": "unknown", "took": 4000,
    }  # fmt: skip
    assert groups["idle"]["span"] == 0
    assert groups["next-gen"]["pauses"][-1][1] == 1, "a pause that has no end goes on"
    assert groups["next-gen"]["blind"]


def test_times_beyond_the_calendar(tmp_path: Path) -> None:
    history = bare()
    history.group.last_ns = history.rebalances[0].started_ns = 2**63 - 1
    history.group.first_ns = -(2**63)
    history.findings = typical().findings
    history.findings[0].value = float("inf")
    assert data_of(page(tmp_path, [history]))["groups"][0]["total"] == 1


@pytest.mark.parametrize("name", ["aiokafka", "cooperative", "eager_range", "static_bounce"])
def test_captures_become_pages(name: str, tmp_path: Path) -> None:
    capture = Path(__file__).parents[1] / "data" / "captures" / f"{name}.pcap"
    analysis = analyze([capture])
    [group] = data_of(page(tmp_path, analysis.histories, analysis.losses))["groups"]
    assert group["id"] == "billing"
    assert group["total"] == len(group["rebalances"]) > 1
    assert group["bars"]
    assert group["clients"] <= group["members"]
    assert all(row["evidence"][0][1] == f"captures/{name}.pcap" for row in group["rebalances"])
    assert to_json(analysis.histories, [])["groups"][0]["opening"] == f"billing: {group['headline']}"


@pytest.mark.slow
def test_libraries_are_needed_only_where_used(tmp_path: Path) -> None:
    """Without altair, vl-convert and rich JSON works, and the others name the extra to install."""
    program = """
import sys
for name in ("altair", "vl_convert", "rich", "pyarrow"):
    sys.modules[name] = None
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.report import print_summary, to_json, write_html
assert to_json([], [])["groups"] == []
for call in (lambda: print_summary([], []), lambda: write_html([], [], sys.argv[1])):
    try:
        call()
    except MissingLibraryError as error:
        print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "the summary needs rich: pip install 'kcoord_wire[cli]'",
        "the HTML report needs vl_convert: pip install 'kcoord_wire[analyze]'",
    ]
    assert not (tmp_path / "report.html").exists()
