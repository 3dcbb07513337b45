"""The page without a browser: one file, hostile strings harmless in it, bounded, the same for the same input."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Cause, GroupHistory, Loss, MemberLife, Ownership
from kcoord_wire.report import to_json, write_html
from kcoord_wire.report.causes import ABOUT, COLOURS, OTHER
from kcoord_wire.report.charts import chart_specs
from kcoord_wire.report.group_clock import Clock
from kcoord_wire.report.lanes import lanes_of, ownership_of
from kcoord_wire.report.page import FOLDER, SCRIPTS
from kcoord_wire.report.page_data import Limits, page_data
from tests.support.histories import (
    HOSTILE,
    MS,
    SECOND,
    START,
    bare,
    empty,
    hostile,
    incident,
    kip_848,
    losses,
    storm,
    summary,
    typical,
)

STORM = storm()


class Outline(HTMLParser):
    """The elements of a page, with the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.inside = -1
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = len(self.elements)
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.inside = -1

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.texts.get(at, "")) for at, (name, attributes) in enumerate(self.elements) if name == tag
        ]


def page(tmp_path: Path, histories: list[GroupHistory], lost: list[Loss] | None = None, **words: str) -> str:
    path = tmp_path / "report.html"
    write_html(histories, lost or [], path, **words)
    return path.read_text("utf-8")


def data_of(text: str) -> dict[str, Any]:
    [data] = [body for attributes, body in Outline(text).all("script") if attributes.get("id") == "data"]
    result: dict[str, Any] = json.loads(data)
    return result


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_one_file_that_asks_nobody(tmp_path: Path) -> None:
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


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(tmp_path: Path) -> None:
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


def test_a_thousand_rebalances_of_two_hundred_members_stay_below_five_megabytes(tmp_path: Path) -> None:
    text = page(tmp_path, [STORM])
    assert len(text.encode()) < 5_000_000
    [group] = data_of(text)["groups"]
    assert len(group["rebalances"]) == group["total"] == 1000
    assert len(group["lanes"]) == 200
    assert len(STORM.ownership) > 100_000
    assert f"{len(STORM.ownership):,} intervals of ownership" in " ".join(group["cut"])


def test_what_is_too_much_is_cut_and_said() -> None:
    limits = Limits(groups=2, rebalances=60, lanes=50, lives=60, steps=500, held_chars=500, points=40, findings=1)
    data = page_data([STORM, typical(), bare(), empty()], losses(), title="", source="", limits=limits)
    assert data["cut"] == ["2 quieter groups of 4 are not in this page."]
    group = next(group for group in data["groups"] if group["id"] == "clickstream")
    assert sum(len(group["rebalances"]) for group in data["groups"]) == 60
    assert len(group["lanes"]) == 50
    assert sum(map(len, group["bars"])) <= 4 * 500
    assert len(group["pauses"]) <= 41
    said = " ".join(group["cut"])
    for words in ("Of 1,000 rebalances", "clients the 50", "member id", "intervals of ownership", "curve", "minutes"):
        assert words in said


def test_the_curve_of_pauses_keeps_its_height_when_it_is_made_coarser() -> None:
    fine, coarse = (
        page_data([storm("g", 20, 200)], [], title="", source="", limits=Limits(points=points))["groups"][0]["pauses"]
        for points in (10**6, 100)
    )
    assert max(value for _, value in fine) == max(value for _, value in coarse)
    assert fine[-1][1] == coarse[-1][1]
    assert fine[0] == [0, 0]


def test_holds_what_the_history_says() -> None:
    history = typical()
    [group] = page_data([history], [], title="", source="")["groups"]
    assert [row["n"] for row in group["rebalances"]] == list(range(1, 8))
    slow = group["rebalances"][4]
    assert (slow["took"], slow["last"], slow["late"], slow["start"]) == (8100, "billing-2", 6480, 64_200)
    assert slow["end"] - slow["start"] == 8100
    assert [lane["label"] for lane in group["lanes"]] == ["billing-0", "billing-1", "billing-2"]
    assert [len(lane["lives"]) for lane in group["lanes"]] == [1, 2, 1]
    first = group["bars"][0][:4]
    assert first[:3] == [900, 9900, 12]
    assert group["held"][first[3]] == "orders 1-2, 4-5, 7-8, 10-11; payments 0, 3, 6, 9"
    assert sum(point[2] for point in group["commits"]) == history.group.commits
    assert [row["severity"] for row in group["findings"]] == ["critical", "warning", "info"]
    assert group["findings"][0]["end"] == group["span"]


def test_the_least_and_the_unknown(tmp_path: Path) -> None:
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


def test_times_beyond_the_calendar_are_no_harm(tmp_path: Path) -> None:
    history = bare()
    history.group.last_ns = history.rebalances[0].started_ns = 2**63 - 1
    history.group.first_ns = -(2**63)
    history.findings = typical().findings
    history.findings[0].value = float("inf")
    assert data_of(page(tmp_path, [history]))["groups"][0]["total"] == 1


# ---- lanes


def life(member: str, client: str, start: int, end: int | None, host: str = "h") -> MemberLife:
    return MemberLife(
        "g", member, None, client, host, START + start * SECOND, None if end is None else START + end * SECOND, None,
        START, None, None, None, None, [], [],
    )  # fmt: skip


def test_a_client_that_comes_back_keeps_its_lane_and_twins_have_two() -> None:
    lanes = lanes_of([life("a", "c", 0, 5), life("b", "c", 2, None), life("d", "c", 5, 6), life("e", "c", 0, 9, "i")])
    assert [(lane.label, lane.host, [one.member_id for one in lane.lives]) for lane in lanes] == [
        ("c", "h", ["a", "d"]), ("c", "i", ["e"]), ("c (2)", "h", ["b"]),
    ]  # fmt: skip


intervals = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 50), st.none() | st.integers(1, 30)), min_size=1, max_size=25
)


@settings(max_examples=150)
@given(intervals)
def test_steps_count_what_is_held_at_every_moment(found: list[tuple[int, int, int | None]]) -> None:
    history = GroupHistory(summary("g", START + 100 * MS), members=[life("a", "c", 0, None)])
    history.ownership = [
        Ownership("g", "t", partition, "a", "c", 1, START + start * MS,
                  None if length is None else START + (start + length) * MS)
        for partition, start, length in found
    ]  # fmt: skip
    cut: list[str] = []
    [flat], held = ownership_of(history, lanes_of(history.members), Clock(history), 1000, 10_000, cut)
    assert cut == []
    steps = [flat[at : at + 4] for at in range(0, len(flat), 4)]
    assert all(before[1] <= after[0] for before, after in pairwise(steps))
    for moment in range(101):
        expected = {
            partition
            for partition, start, length in found
            if start <= moment < (100 if length is None else start + length)
        }
        counts = [(int(count), which) for start, end, count, which in steps if start <= moment < end]
        assert [count for count, _ in counts] == ([len(expected)] if expected else [])
        for _, which in counts:
            numbers = re.findall(r"(\d)-?(\d?)", held[int(which)].removeprefix("t "))
            assert {n for a, b in numbers for n in range(int(a), int(b or a) + 1)} == expected


# ---- colours and charts


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes() -> list[dict[str, str]]:
    style = (FOLDER / "page.css").read_text("utf-8")
    blocks = re.findall(r"^:root(?:\[[^\]]*\])? \{(.*?)^\}", style, re.DOTALL | re.MULTILINE)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_colours_can_be_told_from_their_ground(theme: dict[str, str]) -> None:
    for colour in [*COLOURS.values(), OTHER]:
        assert contrast(colour, theme["ground"]) >= 3
    for ink in ("ink", "quiet", "link", "critical", "warning", "info"):
        for ground in ("ground", "panel"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    for severity in ("critical", "warning", "info"):
        assert contrast(theme[severity], theme[f"{severity}-ground"]) >= 4.5
    assert contrast(theme["ink"], theme["warning-ground"]) >= 4.5


def test_every_cause_has_a_colour_of_its_own_and_a_sentence() -> None:
    assert set(COLOURS) == set(ABOUT) == set(Cause)
    assert len(set(COLOURS.values()) - {OTHER}) >= len(Cause) - 1


def test_charts_hold_no_data_and_no_address() -> None:
    specs = chart_specs()
    assert list(specs) == ["causes", "lanes", "pauses", "commits"]
    for spec in specs.values():
        assert "datasets" not in spec
        assert "values" not in json.dumps([layer["data"] for layer in spec["layer"]])
        addresses = re.findall(r'https?://[^"]*', json.dumps(spec))
        assert addresses == [spec["$schema"]]


@pytest.mark.parametrize("name", ["aiokafka", "cooperative", "eager_range", "static_bounce"])
def test_a_real_capture_becomes_a_page_and_json(name: str, tmp_path: Path) -> None:
    capture = Path(__file__).parents[1] / "data" / "captures" / f"{name}.pcap"
    analysis = analyze([capture])
    [group] = data_of(page(tmp_path, analysis.histories, analysis.losses))["groups"]
    assert group["id"] == "billing"
    assert group["total"] == len(group["rebalances"]) > 1
    assert group["bars"]
    assert group["clients"] <= group["members"]
    assert all(row["evidence"][0][1] == f"captures/{name}.pcap" for row in group["rebalances"])
    assert to_json(analysis.histories, [])["groups"][0]["opening"] == f"billing: {group['sentence']}"


@pytest.mark.slow
def test_only_what_is_asked_for_needs_its_library(tmp_path: Path) -> None:
    """Without altair, vl-convert and rich there is still JSON, and the others say what to install."""
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
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER.parent.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "the summary needs rich: pip install 'kcoord_wire[cli]'",
        "the HTML report needs vl_convert: pip install 'kcoord_wire[analyze]'",
    ]
    assert not (tmp_path / "report.html").exists()
