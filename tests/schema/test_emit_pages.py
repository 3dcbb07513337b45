"""Wire pages: the codecs write the bytes that they show, and they have every message, error and bound that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.peer import Limits
from kcoord_wire.central.rewrite.events import CoordinatorSettings as RewriteSettings
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.errors import EncodeError
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.schema import generate
from kcoord_wire.schema.emit_pages import emit_page, read_examples
from kcoord_wire.schema.files import load_messages, schema_root
from tests.support.codecs import codecs

MESSAGES = load_messages(schema_root())
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((schema_root().parent / "docs").glob("wire-*.md"))}
FAMILIES = {"wire-draft": "central", "wire-marshal": "marshal", "wire-rewrite": "rewrite"}
LINE = re.compile(r"^ {4,7}\d+  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", re.MULTILINE)
CORRELATION_ID, CLIENT_ID = 7, "me"


def shown(text: str) -> Iterator[bytes]:
    """The bytes of each example of a page, from its lines."""
    for block in re.split(r"^.*, \d+ bytes:$", text, flags=re.MULTILINE)[1:]:
        rows = block.partition("<!--")[0]
        yield bytes.fromhex("".join(LINE.findall(rows)))


def keyed(value: Any) -> Any:
    """The keys of schema files for those of pages."""
    if isinstance(value, list):
        return [keyed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {"".join(map(str.capitalize, key.split("_"))): keyed(each) for key, each in value.items()}


def written(name: str, version: int, values: dict[str, Any]) -> bytes:
    """The frame as the codecs write it; all of them write the same."""
    codec = kw.registry[name]
    message: Any = kw.from_dict(codec.cls, keyed(values))
    body, *others = [each.encode(message) for each in codecs(codec, version)]
    assert set(others) == {body}
    if codec.schema.encoding == "text":
        return body
    if codec.header == "kafka":
        key = {"correlation_id": CORRELATION_ID}
        if codec.type == "response":
            return kw.frame(kw.encode_response(message, version, **key))
        return kw.frame(kw.encode_request(message, version, client_id=CLIENT_ID, **key))
    assert codec.api_key is not None
    return kw.frame((codec.api_key.to_bytes(2, "big") if codec.header == "typeId" else b"") + body)


@pytest.mark.parametrize("page", PAGES)
def test_the_codecs_write_what_the_examples_show(page: str) -> None:
    examples = list(read_examples(PAGES[page]))
    assert [written(*each) for each in examples] == list(shown(PAGES[page]))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_every_message_of_its_design(page: str) -> None:
    described = {name for name, _, _ in read_examples(PAGES[page])}
    named = {name for name, message in MESSAGES.items() if message.family == FAMILIES[page]}
    assert named - described == ({"CentralStatusRequest", "CentralStatusResponse"} if page == "wire-draft" else set())


def test_there_is_a_page_for_each_design() -> None:
    assert PAGES.keys() == FAMILIES.keys()


@pytest.mark.parametrize(("page", "errors"), [("wire-draft", CentralError), ("wire-rewrite", RewriteError)])
def test_a_page_has_every_error(page: str, errors: type[CentralError | RewriteError]) -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| [^|]+ \| [^|]{4,} \|$", PAGES[page], re.MULTILINE)
    assert rows == [(str(int(error)), error.name) for error in errors]


def test_the_draft_page_has_the_bounds_of_the_code() -> None:
    settings, limits = CoordinatorSettings(), Limits()
    text = " ".join(PAGES["wire-draft"].split())
    for said in (
        f"({settings.min_session_timeout_ms:,} to {settings.max_session_timeout_ms:,}, unless",
        f"at most {limits.max_unregistered_frame_size >> 10} KiB before it is registered",
        f"and {limits.max_frame_size >> 20} MiB after that",
        f"closed after {limits.idle_ms // 1000} s of silence",
        f"half a frame after {limits.frame_ms // 1000} s",
        f"{settings.rebalance_backoff_ms // 1000} s apart",
    ):
        assert said in text
    assert (settings.max_ping_retries, settings.max_rebalance_retries) == (1, 4), "two in a row; five times in all"


def test_the_rewrite_page_has_the_bounds_of_the_code() -> None:
    settings = RewriteSettings()
    said = f"({settings.min_session_timeout_ms:,} to {settings.max_session_timeout_ms:,}"
    assert said in PAGES["wire-rewrite"]


def test_the_marshal_page_places_topics_as_the_code_does() -> None:
    placed = dict(re.findall(r"`(orders|payments)` (?:is )?on (?:partition )?(\d+)", PAGES["wire-marshal"]))
    assert placed == {topic: str(coordination_partition(topic, 50)) for topic in ("orders", "payments")}


# ---- the sections


def page_of(name: str, examples: str) -> str:
    return f"# Title\n\n<!-- message {name}\n{examples}\n-->\nstale\n<!-- end of {name.split()[0]} -->\n\nThe end.\n"


def test_a_section_is_written_between_its_comments() -> None:
    text = emit_page(page_of("PingRequest", 'once more: {"consumer_id": "c", "num_retries": 1}'), MESSAGES)
    assert text.startswith("# Title\n\n<!-- message PingRequest\n")
    assert text.endswith("\n\n<!-- end of PingRequest -->\n\nThe end.\n")
    assert "stale" not in text
    assert "| 6 | 2 + n | `consumer_id` | string | The consumer that is asked. |\n| then | 4 | `num_retries` |" in text
    assert "\nOnce more, 13 bytes:\n\n       0  00 00 00 09  size 9\n       4  00 07        request_type_id 7\n" in text
    assert emit_page(text, MESSAGES) == text


def test_a_table_leads_through_elements() -> None:
    text = emit_page(page_of("StartFetcherRequest", '{"fence": [{"epoch": 1}]}'), MESSAGES)
    cells = re.findall(r"^\| (\w+) \| ([^|]+) \| `([^`]+)`", text, re.MULTILINE)
    assert [(at, size, path.rpartition(".")[2]) for at, size, path in cells[2:8]] == [
        ("6", "2 + n", "consumer_id"),
        ("then", "2 + elements", "ownership_info"),
        ("each", "2 + n", "consumer_thread_id"),
        ("then", "2 + elements", "assigned_parts"),
        ("each", "2 + n", "topic"),
        ("then", "2 + n", "partition"),
    ]
    assert ("then", "4", "brokers_info[].port") in cells
    assert "| []Fence, or absent | An extension" in text


def test_null_and_empty_are_shown_as_they_are() -> None:
    text = emit_page(page_of("MetadataRequest 1", '{"topics": null}\n{"topics": []}'), MESSAGES)
    assert "  ff ff ff ff  topics null\n" in text
    assert "  00 00 00 00  topics a list of 0\n" in text
    text = emit_page(page_of("FindCoordinatorResponse 1", '{"error_message": null, "host": ""}'), MESSAGES)
    assert "  ff ff        error_message null\n" in text
    assert '  00 00        host ""\n' in text


@pytest.mark.parametrize(
    ("name", "example", "says"),
    [
        ("Pong", "{}", "there is no message Pong"),
        ("HeartbeatRequest 4", "{}", "HeartbeatRequest 4 has the flexible form"),
        ("PingRequest", '{"fence": [{"era": 1}]}', "PingRequest.fence has no field 'era'"),
    ],
)
def test_what_a_section_cannot_say_is_refused(name: str, example: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        emit_page(page_of(name, example), MESSAGES)


def test_an_example_keeps_to_its_schema() -> None:
    with pytest.raises(EncodeError, match=r"Heartbeat\.partition"):
        emit_page(page_of("Heartbeat", '{"partition": 100000}'), MESSAGES)


def test_the_generator_keeps_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {name: tmp_path / name for name in ("schemas", "messages", "docs")}
    for folder in folders.values():
        folder.mkdir()
    source = schema_root() / "marshal" / "Heartbeat.json"
    (folders["schemas"] / "Heartbeat.json").write_bytes(source.read_bytes())
    page = folders["docs"] / "wire-own.md"
    page.write_text(page_of("Heartbeat", "{}"))
    monkeypatch.setattr(generate, "schema_root", lambda: folders["schemas"])
    monkeypatch.setattr(generate, "MESSAGES", folders["messages"])
    assert generate.main(["--check"]) == 1
    assert "stale: wire-own.md\n" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert "    Heartbeat/1/0/////0/0\n" in page.read_text()
    assert generate.main(["--check"]) == 0
    page.write_text(page_of("Heartbeat", '{"era": 1}'))
    assert generate.main(["--check"]) == 1
    assert "Heartbeat has no field 'era'" in capsys.readouterr().err
