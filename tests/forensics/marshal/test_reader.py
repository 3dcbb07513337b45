"""Claims of one coordination partition, entry by entry.

A coordination topic is recognised by its values, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kcoord_wire.forensics.marshal.reader import (
    ClaimRules,
    Part,
    PartitionReader,
    coordination_sources,
    holds_marshal_text,
)
from kcoord_wire.forensics.model import ClaimRow, CommitRow, LogRow, Loss
from tests.support.marshal_rows import NOW, generated_log, live_log, log_rows, table
from tests.support.offsets_log import generation
from tests.support.offsets_log import table as offsets_table

Line = tuple[float, bytes | str]
S = 1_000_000_000
LIBRARY = ClaimRules("library")
DEFAULT_RULES = ClaimRules()
CLAIM = "ClaimingPartition/1/{}/i1/c1/g/t/0"
BEAT = "Heartbeat/1/{}/i1/c1/g/t/0/5"
OTHER_CLAIM = "ClaimingPartition/1/{}/i2/c2/g/t/0"


def parts_of(
    lines: Iterable[Line], judge: ClaimRules = DEFAULT_RULES, first: int = 0, often: bool = False
) -> list[Part]:
    reader = PartitionReader(0, judge)
    parts: list[Part] = []
    for row in log_rows(lines, first=first):
        reader.read(row.offset, row.time_ns, row.is_append_time, row.value, row.source, row.position)
        parts += reader.closed() if often else ()
    return [*parts, *reader.end()]


def claims_of(lines: Iterable[Line], judge: ClaimRules = ClaimRules(), first: int = 0) -> list[ClaimRow]:  # noqa: B008 - immutable
    found = [part.claim for part in parts_of(lines, judge, first) if part.claim is not None]
    return sorted(found, key=lambda row: (row.from_ns, row.token))


def ends_of(lines: Iterable[Line], judge: ClaimRules = ClaimRules(), first: int = 0) -> list[tuple[str, str, str]]:  # noqa: B008 - immutable
    return [(row.client_id, row.began, row.ended) for row in claims_of(lines, judge, first)]


def test_a_claim_has_its_offsets_heartbeats_and_longest_gap() -> None:
    release = "ReleasingPartition/1/{}/i1/c1/g/t/0/9"
    [claim] = claims_of([(0, CLAIM), (1, BEAT), (30, BEAT), (40, release)])
    assert claim == ClaimRow(
        "g", "t", 0, "c1", "i1", 0, NOW * S, (NOW + 40) * S, "claimed", "released", 5, 9, 2, 29_000
    )


def test_a_claim_is_open_until_two_intervals_have_passed() -> None:
    other = "Heartbeat/1/{}/x/x/g/t/1/5"
    assert ends_of([(0, CLAIM), (1, BEAT), (121, other)]) == [("c1", "claimed", "open")]
    [claim] = claims_of([(0, CLAIM), (1, BEAT), (122, other)])
    assert (claim.ended, claim.to_ns) == ("stale", (NOW + 121) * S)


def test_a_claim_is_refused_while_another_lives() -> None:
    parts = parts_of([(0, CLAIM), (60, OTHER_CLAIM), (61, "Heartbeat/1/{}/i2/c2/g/t/0/7")])
    assert [part.claim.client_id for part in parts if part.claim] == ["c1"]
    assert [part.commit for part in parts if part.commit] == [
        CommitRow("g", "t", 0, (NOW + 61) // 60 * 60 * S, 0, 1, -1, -1, None)
    ]
    assert {part.sighting.client_id: part.sighting.refused for part in parts if part.sighting} == {"c1": 0, "c2": 2}


def test_a_stale_claim_is_won_by_the_first_that_claims() -> None:
    assert ends_of([(0, CLAIM), (1, BEAT), (130, OTHER_CLAIM)]) == [
        ("c1", "claimed", "stale"),
        ("c2", "claimed", "open"),
    ]


def test_a_restarted_instance_takes_its_claims_over() -> None:
    again = "Heartbeat/1/{}/i9/c1/g/t/0/6"
    claims = claims_of([(0, CLAIM), (1, BEAT), (5, again)])
    assert [(row.instance_id, row.began, row.ended, row.token) for row in claims] == [
        ("i1", "claimed", "taken over", 0),
        ("i9", "restarted", "open", 2),
    ]


def test_a_heartbeat_of_another_client_counts_for_the_library() -> None:
    theft = "Heartbeat/1/{}/i2/c2/g/t/0/7"
    assert ends_of([(0, CLAIM), (1, BEAT), (5, theft)]) == [("c1", "claimed", "open")]
    assert ends_of([(0, CLAIM), (1, BEAT), (5, theft)], LIBRARY) == [
        ("c1", "claimed", "taken over"),
        ("c2", "taken over", "open"),
    ]


def test_a_late_heartbeat_resumes_a_claim_for_the_library() -> None:
    lines = [(0, CLAIM), (1, BEAT), (200, BEAT)]
    assert ends_of(lines) == [("c1", "claimed", "stale")]
    assert ends_of(lines, LIBRARY) == [("c1", "claimed", "stale"), ("c1", "resumed", "open")]


def test_a_release_under_a_pause_is_one_of_the_pause() -> None:
    halt = f"ReleaseGroup/1/{{}}/a/admin/g//0/{NOW + 100}"
    release = "ReleasingPartition/1/{}/i1/c1/g/t/0/9"
    assert ends_of([(0, CLAIM), (1, BEAT), (5, halt), (6, release)]) == [("c1", "claimed", "paused")]
    assert ends_of([(0, CLAIM), (1, BEAT), (5, halt), (101, release)]) == [("c1", "claimed", "released")]
    [pause] = [part.pause for part in parts_of([(5, halt)]) if part.pause]
    assert (pause.client_id, pause.from_ns, pause.until_ns) == ("admin", (NOW + 5) * S, (NOW + 100) * S)


def test_an_announced_release_is_handed_over() -> None:
    word = f"HandingOver/1/{{}}/i1/c1/g/t/0/i2/{NOW + 20}"
    release = "ReleasingPartition/1/{}/i1/c1/g/t/0/9"
    assert ends_of([(0, CLAIM), (1, BEAT), (5, word), (6, release)]) == [("c1", "claimed", "handed over")]
    assert ends_of([(0, CLAIM), (1, BEAT), (5, word), (30, release)]) == [("c1", "claimed", "released")]


def test_a_heartbeat_shows_a_claim_whose_beginning_is_gone() -> None:
    [claim] = claims_of([(0, BEAT), (30, BEAT)], first=1000)
    assert (claim.began, claim.token, claim.heartbeats) == ("before the log", -1, 2)
    assert claims_of([(0, BEAT)]) == []


def test_garbage_is_one_loss_per_kind() -> None:
    junk = [
        b"",
        b"\xff\xfe",
        b"x" * 1_000_000,
        b"junk",
        b"Heartbeat/1/1/i/c/g/t/-1/0",
        b"Heartbeat/1/1/i/c/g/t/9999999/0",
    ]
    parts = parts_of([(0, CLAIM), *((1, text) for text in junk * 3), (2, BEAT)])
    assert [part.claim.heartbeats for part in parts if part.claim] == [1]
    losses = [part.loss for part in parts if part.loss]
    assert sum(loss.count for loss in losses) == 3 * len(junk)
    assert len(losses) == 4  # empty, no type (twice), too long, a partition out of bounds (twice)
    assert sum(loss.bytes for loss in losses) == 3 * sum(map(len, junk))
    assert all(isinstance(loss, Loss) and loss.source == "__marshal-0" for loss in losses)


def test_an_entry_on_another_partition_does_not_count() -> None:
    away = next(n for n in range(50) if not claims_of([(0, CLAIM.replace("/t/", f"/t{n}/"))], ClaimRules(partitions=4)))
    lines = [(0, CLAIM.replace("/t/", f"/t{away}/"))]
    [sighting] = [part.sighting for part in parts_of(lines, ClaimRules(partitions=4)) if part.sighting]
    assert sighting.misplaced == 1
    assert len(claims_of(lines, ClaimRules("library", partitions=4))) == 1


def test_a_record_that_was_read_counts_once() -> None:
    reader = PartitionReader(0, ClaimRules())
    [claim, beat] = log_rows([(0, CLAIM), (1, BEAT)])
    for row in (claim, beat, beat, claim):
        reader.read(row.offset, row.time_ns, row.is_append_time, row.value, row.source, row.position)
    [found] = [part.claim for part in reader.end() if part.claim]
    assert found.heartbeats == 1


def test_a_clock_ahead_shows_by_the_append_time() -> None:
    lines = [(0.5, CLAIM), (1.25, BEAT), (2, "Heartbeat/1/{+7}/i2/c2/g/t/1/0")]
    seen = {part.sighting.client_id: part.sighting for part in parts_of(lines) if part.sighting}
    assert {name: row.ahead_ms for name, row in seen.items()} == {"c1": -250, "c2": 7000}


@pytest.mark.parametrize("rules", ["document", "library"])
def test_the_rows_do_not_depend_on_when_they_are_asked_for(rules: str) -> None:
    for log in [live_log(), *(generated_log(seed) for seed in range(4))]:
        lines: list[Line] = [(row.time_ns / S - NOW, row.value or b"") for row in log if row.partition == 1]
        at_once, often = (parts_of(lines, ClaimRules(rules), often=often) for often in (False, True))
        assert sorted(map(repr, at_once)) == sorted(map(repr, often))


TEXTS = Path(__file__).parents[3] / "schemas" / "marshal"


@pytest.mark.parametrize("kind", sorted(path.stem for path in TEXTS.glob("*.json")))
def test_every_message_of_the_family_is_recognised(kind: str) -> None:
    assert coordination_sources(table(log_rows([(0, f"{kind}/1/{{}}/i/c/g/t/0")]))).to_pylist() == ["__marshal-0"]


def test_only_the_sources_with_marshal_text_count() -> None:
    rows = [*live_log(), *log_rows([(0, b"junk")], partition=7)]
    found = coordination_sources(table(rows)).to_pylist()
    assert sorted(found) == ["__marshal-1", "__marshal-2"]


def test_a_record_with_a_key_is_none_of_marshal() -> None:
    row = LogRow("x.log", 0, 0, 0, 0, b"k", b"Heartbeat/1/1/i/c/g/t/0/0")
    assert coordination_sources(table([row])).to_pylist() == []
    assert coordination_sources(offsets_table([generation(1, {"m": [0]})])).to_pylist() == []


def test_the_text_is_found_in_the_bytes_of_a_segment() -> None:
    assert holds_marshal_text(b"\0" * 61 + b"ClaimingPartition/1/1795224460/3879dfdf/cl-one/gr/t/0")
    assert not holds_marshal_text(b"\0" * 61 + b"Heartbeat of a log: /1/2")
