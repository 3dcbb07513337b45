"""Pages of the site: what those of messages say, which programs they have, and where their links lead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kcoord_wire as kw
from docs.website import message_pages
from docs.website.__main__ import sources_of
from docs.website.api_pages import public_names
from docs.website.check import find_problems
from kcoord_wire.schema.describe import describe_fields

# One of each kind: flexible, with several structs, headers, a record, a union, no version but 0, text, embedded.
SHOWN = (
    "JoinGroupRequest",
    "FetchResponse",
    "RequestHeader",
    "OffsetCommitValue",
    "SingleAssignorJoinGroupRequest",
    "PingRequest",
    "Heartbeat",
    "ConnectProtocolMetadata",
    "ConsumerProtocolSubscription",
)
PAGES = {name: message_pages.emit_message_page(kw.registry[name]) for name in SHOWN}


def row(page: str, field: str) -> list[str]:
    [cells] = re.findall(rf"^\| `{field}` \| (.*) \|$", page, re.MULTILINE)
    return cells.split(" | ")


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_has_a_row_for_each_field(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGES[name].partition("## Fields")[2], re.MULTILINE)
    fields = {row.path.rpartition(".")[2] for row in describe_fields(kw.registry[name].schema)}
    assert set(rows) == fields


@pytest.mark.parametrize("name", SHOWN)
def test_the_program_of_a_page_prints_what_is_below_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    [(program, shown)] = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGES[name], re.M | re.S)
    exec(compile(program, name, "exec"), {})
    assert capsys.readouterr().out == shown
    assert shown.startswith(f"{name} version {kw.registry[name].valid_versions[-1]}, ")


def test_a_field_says_all_that_the_schema_knows() -> None:
    page = PAGES["JoinGroupRequest"]
    assert row(page, "rebalance_timeout_ms")[:6] == ["int32", "1", "", "", "`-1`", "[62](../kips.md#kip-62)"]
    assert row(page, "group_instance_id")[:5] == ["string", "5", "", "yes", "`null`"]
    assert row(page, "metadata")[0] == "bytes of [ConsumerProtocolSubscription](ConsumerProtocolSubscription.md)"
    assert row(page, "protocols")[0].endswith("JoinGroupRequestProtocol](#joingrouprequestprotocol)")
    assert "\n### JoinGroupRequestProtocol\n" in page
    assert "Refused ([INVALID_GROUP_ID](../errors.md#invalid_group_id)): must not be empty." in row(page, "group_id")[6]
    page = PAGES["FetchResponse"]
    assert row(page, "topic")[1:3] == ["0", "12"]
    assert row(page, "node_endpoints")[0].endswith(", tag 0")


def test_a_page_leads_to_the_other_side_and_to_errors() -> None:
    page = PAGES["JoinGroupRequest"]
    assert "- Answered by: [JoinGroupResponse](JoinGroupResponse.md)\n" in page
    assert "| 24 | [INVALID_GROUP_ID](../errors.md#invalid_group_id) |" in page
    assert "[RequestHeader](RequestHeader.md) version 1 (for 0 to 5), version 2 (for 6 to 9)\n" in page
    assert "`protocols[].metadata` of [JoinGroupRequest](JoinGroupRequest.md)" in PAGES["ConsumerProtocolSubscription"]
    assert "`protocols[].metadata` of [JoinGroupRequest](JoinGroupRequest.md)" in PAGES["ConnectProtocolMetadata"]
    assert "[wire-draft.md](../docs/wire-draft.md)" in PAGES["PingRequest"]
    assert "## Errors" not in PAGES["PingRequest"], "its error codes are not Kafka's"


def test_versions_say_what_comes_and_goes() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", PAGES["OffsetCommitValue"], re.M)
    assert [version for version, *_ in rows] == ["0", "1", "2", "3", "4"]
    assert rows[1][3] == rows[2][4] == "`expire_timestamp`"
    assert rows[3][1:4] == ("adds the leader epoch (KIP-320)", "[320](../kips.md#kip-320)", "`leader_epoch`")


def test_lists_lead_to_every_message_error_and_proposal() -> None:
    lists = message_pages.emit_lists()
    linked = re.findall(r"\]\((\w+)\.md\)", lists["messages/index.md"])
    assert sorted(linked) == sorted(kw.registry)
    headings = re.findall(r"^## (\w+)$", lists["errors.md"], re.MULTILINE)
    assert headings == list(kw.error_codes.ErrorCode.__members__)
    assert re.search(
        r"^## KIP-62\n\n(?:- .*\n)*- \[JoinGroupRequest\].*, version 1: `rebalance_timeout_ms`$", lists["kips.md"], re.M
    )


def test_the_pages_of_the_repository_lead_to_what_the_site_has() -> None:
    pages = sources_of(
        {"docs/a.md": "[A](../README.md#x) [b](../schemas) [`c`](watch.md) [d](../setup.py) ![e](e.svg)"}
    )
    assert pages["docs/a.md"] == "[A](/index.md#x) b [`c`](watch.md) {download}`d <../setup.py>` ![e](e.svg)"
    assert pages["setup.py"] == ""
    assert pages["docs/watch.md"].startswith("---\norphan: true\n")


def test_links_in_programs_stay() -> None:
    program = "```python\nx = a[i](README.md)\n```\n"
    assert sources_of({"a.md": program})["a.md"] == program


def test_public_names_are_those_that_programs_import() -> None:
    text = (
        "```python\nfrom kcoord_wire.consumer.errors import ListenerError\nfrom kcoord_wire.watch import Watched\n```\n"
    )
    names = public_names([text, "```\nnot a program\n```\n"])
    assert names["kcoord_wire.consumer.errors"] == ["ListenerError"]
    assert names["kcoord_wire.watch"] == ["Limits", "Watched"]
    assert {"encode", "DecodeError", "MessageCodec"} <= set(names["kcoord_wire"])
    assert "JoinGroupRequest" not in names["kcoord_wire"]


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">ok</a><a href="b.html#gone">1</a><a href="c.html">2</a><a href="https://x.example">ok</a>'
        '<script src="https://cdn.example/x.js"></script><a href="#self">ok</a><p id="self">'
    )
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><img src="no.png">')
    (tmp_path / "s.css").write_text(
        "@import url('//fonts.example/a.css'); a { background: url(data:image/png;base64,) }"
    )
    assert find_problems(tmp_path) == [
        "a.html: loads https://cdn.example/x.js",
        "a.html: b.html#gone leads nowhere",
        "a.html: c.html leads nowhere",
        "b.html: no.png leads nowhere",
        "s.css: loads //fonts.example/a.css",
    ]
    assert find_problems(tmp_path / "empty") == [f"{tmp_path / 'empty'}: there is no page"]
