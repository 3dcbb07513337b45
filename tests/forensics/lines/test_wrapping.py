"""Times, prefixes and JSON around a line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from kcoord_wire.forensics.lines.wrapping import Stamp, stamp_of, unwrap
from tests.support.text_logs import NOW, parse

MESSAGE = "[GroupCoordinator 1]: Preparing to rebalance group g in state PreparingRebalance with old generation 4 "
MESSAGE += "(__consumer_offsets-7) (reason: removing member c-1 on heartbeat expiration)"
CLASS = "(kafka.coordinator.group.GroupCoordinator)"
QUOTED = MESSAGE.replace('"', '\\"')
NOON = int(datetime(2026, 11, 22, 12, 0, 3, tzinfo=UTC).timestamp()) * 10**9 + 123_000_000
AROUND = {
    "log4j": (f"[2026-11-22 12:00:03,123] INFO {MESSAGE} {CLASS}", False),
    "log4j, Windows": (f"[2026-11-22 12:00:03,123] INFO {MESSAGE} {CLASS}\r", False),
    "log4j, other pattern": (
        f"2026-11-22T12:00:03.123 [kafka-request-handler-3] INFO  k.c.g.GroupCoordinator - {MESSAGE}",
        False,
    ),
    "colours": (f"\x1b[32m2026-11-22 12:00:03.123\x1b[0m \x1b[1mINFO\x1b[m {MESSAGE}", False),
    "Spring Boot": (f"2026-11-22T12:00:03.123Z  INFO 1 --- [app] [main] k.c.g.GroupCoordinator : {MESSAGE}", True),
    "zone": (f"[2026-11-22 13:00:03,123 +0100] INFO {MESSAGE}", True),
    "docker -t": (f"2026-11-22T12:00:03.123000000Z [2026-11-22 13:00:03,123] INFO {MESSAGE} {CLASS}", True),
    "docker json-file": (
        f'{{"log":"[2026-11-22 13:00:03,123] INFO {QUOTED}\\n","stream":"stdout","time":"2026-11-22T12:00:03.123Z"}}',
        True,
    ),
    "compose": (f"kafka-1  | [2026-11-22 12:00:03,123] INFO {MESSAGE} {CLASS}", False),
    "kubectl --prefix": (
        f"[pod/kafka-0/kafka] 2026-11-22T12:00:03.123Z [2026-11-22 13:00:03,123] INFO {MESSAGE}",
        True,
    ),
    "CRI": (f"2026-11-22T13:00:03.123+01:00 stdout F [2026-11-22 13:00:03,123] INFO {MESSAGE}", True),
    "logstash layout": (
        f'{{"@timestamp":"2026-11-22T12:00:03.123Z","level":"INFO","message":"{QUOTED}","logger_name":"x"}}',
        True,
    ),
    "shipper of docker": (
        f'{{"@timestamp":"2026-11-22T12:00:03.123Z","log":"{{\\"ts\\":1,\\"msg\\":\\"{QUOTED}\\"}}"}}',
        True,
    ),
    "epoch in JSON": (f'{{"timestamp":1795348803123,"message":"{QUOTED}"}}', True),
    "journald": (f"2026-11-22T12:00:03.123+00:00 host kafka[12]: {MESSAGE}", True),
    "syslog": (f"Nov 22 12:00:03.123 host kafka[12]: {MESSAGE}", False),
    "Go": (f"2026/11/22 12:00:03.123 {MESSAGE}", False),
    "apache": (f"22/Nov/2026:12:00:03.123 {MESSAGE}", False),
}


@pytest.mark.parametrize("name", AROUND)
def test_the_line_and_its_time_are_found(name: str) -> None:
    text, is_zoned = AROUND[name]
    [row] = parse(text + "\n")
    assert (row.time_ns, row.is_zoned) == (NOON, is_zoned)
    assert (row.group_id, row.generation_id, row.reason) == ("g", 4, "removing member c-1 on heartbeat expiration")


def test_a_time_without_a_zone_is_in_the_zone_given() -> None:
    [row] = parse(AROUND["log4j"][0], zone=timezone(timedelta(hours=2)))
    assert row.time_ns == NOON - 2 * 3600 * 10**9


def test_syslog_takes_the_latest_year_that_is_past() -> None:
    assert stamp_of("Dec 31 23:00:00 host", [], UTC, NOW) == Stamp(
        int(datetime(2025, 12, 31, 23, tzinfo=UTC).timestamp()) * 10**9, False
    )


@pytest.mark.parametrize("text", ["[2026-13-45 99:00:00]", "%7|99999999999.123|", "9999-99-99T00:00:00+99:99", ""])
def test_impossible_times_raise_nothing(text: str) -> None:
    stamp_of(text, [True, "x", 1e300, None, {}], UTC, NOW)


@pytest.mark.parametrize("text", ['{"message":"half', '{"message":1}', "{" * 9000, '{"a":' * 3000 + "}", '["x"]}'])
def test_broken_json_is_text(text: str) -> None:
    assert unwrap(text).text


@pytest.mark.parametrize(
    ("prefix", "times"),
    [
        ("[9999-12-31 00:00:00,000] INFO", []),
        ("[0001-01-01 00:00:00,000] INFO", []),
        ("%7|99999999999.000|HEARTBEAT|", []),
        ("", [99_999_999_999]),
        ("", [8_000_000_000_000_000_000]),
    ],
)
def test_a_time_has_64_bits(prefix: str, times: list[int]) -> None:
    """Of nanoseconds, as in all tables; a line without a time has that of the line before."""
    found = stamp_of(prefix, times, UTC, NOW)
    assert found is None or abs(found.time_ns) < 2**63
    assert (found is None) == (times != [8_000_000_000_000_000_000])


def test_a_time_before_1970_is_one() -> None:
    assert stamp_of("[1969-12-31 23:59:59,000] INFO", [], UTC, NOW) == Stamp(-(10**9), False)
