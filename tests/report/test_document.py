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
from kcoord_wire.report.digest import digests
from kcoord_wire.report.formatting import ago, utc
from kcoord_wire.report.page.document import FOLDER, SCRIPTS
from tests.support.histories import (
    HOSTILE,
    SECOND,
    START,
    bare,
    empty,
    hostile,
    incident,
    kip_848,
    losses,
    storm,
    typical,
)
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
    outline = Outline(page(tmp_path, [hostile("harmless")], losses("harmless"), title="t", source="s"))
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
    shown += attacked.words()
    assert all(string.isprintable() for string in shown)
    if name.isprintable() and len(name) < 60:
        assert name in shown


def test_without_scripts_every_group_is_legible(tmp_path: Path) -> None:
    """What the elements say before any script has run."""
    histories = [typical(), kip_848(), bare(), empty()]
    outline = Outline(page(tmp_path, histories, losses(), title="Groups", source="node-1.pcap"))
    text = " ".join(outline.words())
    for digest in digests(histories):
        for sentence in (digest.headline.text, digest.sentence, digest.period, digest.origin):
            assert text.count(sentence) >= 1, sentence
        for finding in digest.history.findings:
            assert finding.text in text
            assert finding.advice in text
        for sentence in digest.history.group.blind:
            assert sentence in text
    for row in typical().rebalances:
        assert f"{utc(row.started_ns, digits=3)[11:-4]} ({ago(row.started_ns, START)})" in text
        assert row.detail in text
    assert "5 pieces at 3 places, 4,933 bytes." in text
    assert "the batch's CRC does not fit" in text
    captions = [words for _, words in outline.all("caption")]
    assert captions[0].startswith(
        "4 groups, worst first; 14 rebalances in total. The bars: 2025-11-21 15:00:00.000 UTC to "
    )
    assert captions.count("Rebalances, in order of time") == 3
    assert captions.count("Members, one row per client") == 2


def test_groups_are_compared_on_one_scale_of_time(tmp_path: Path) -> None:
    later = bare("later")
    later.group.first_ns += 3 * later.group.last_ns - 3 * later.group.first_ns
    later.group.last_ns, later.rebalances[0].started_ns = later.group.first_ns + 5 * SECOND, later.group.first_ns
    later.rebalances[0].duration_ms = 1000.0
    outline = Outline(page(tmp_path, [bare(), later]))
    rows = [attributes for attributes, _ in outline.all("rect") if attributes.get("class") == "seen"]
    assert [(row["x"], row["width"]) for row in rows] == [("0", "250"), ("750", "250")], "the worst first"
    cells = outline.words()
    assert "2025-11-21 15:00:00 to 15:00:05 UTC" in cells
    assert "2025-11-21 15:00:15 to 15:00:20 UTC" in cells
    assert not Outline(page(tmp_path, [bare()])).all("rect")[2:], "one group has nothing to compare with"


def test_what_is_wrong_holds_nothing_that_is_right(tmp_path: Path) -> None:
    history = typical()
    fault, right = history.findings[0], history.findings[2]
    right.severity, right.text, right.advice = "info", "A deploy.", "Nothing is wrong. `kcoord simulate` has more."
    order = [
        part
        for part in Outline(page(tmp_path, [history])).words()
        if part in ("What is wrong", fault.text, "A deploy.")
    ]
    assert order == ["What is wrong", fault.text, "A deploy."]
    words = Outline(page(tmp_path, [history])).words()
    between = words[words.index(fault.text) : words.index("A deploy.")]
    assert "What was found besides" in between
    history.findings = [right]
    words = Outline(page(tmp_path, [history])).words()
    assert "What was found" in words
    assert "What is wrong" not in words


def test_backticks_set_code(tmp_path: Path) -> None:
    history = typical()
    history.findings[0].advice = "Run `kcoord simulate --from <b>` and `x`; a lone ` stays."
    outline = Outline(page(tmp_path, [history]))
    assert [text for _, text in outline.all("code")][:2] == ["kcoord simulate --from <b>", "x"]
    assert "; a lone ` stays." in outline.words()


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
