"""Addresses as text, first bytes that are not Kafka's, and the limit on log lines."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel import net
from kcoord_wire.kernel.net import LogLimiter, address_text, guess_protocol, local_address, parse_address, parse_port


@pytest.mark.parametrize("address", [("localhost", 9092), ("10.0.0.1", 0), ("::1", 65_535), ("", 1)])
def test_an_address_reads_back(address: tuple[str, int]) -> None:
    assert parse_address(address_text(*address)) == address


def test_brackets_are_optional() -> None:
    assert parse_address("::1:9092") == parse_address("[::1]:9092") == ("::1", 9092)


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "localhost:-1", "localhost:65536", "localhost:9x"])
def test_other_text_is_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a port|is not of the form HOST:PORT"):
        parse_address(text)


def test_port_zero_is_a_port() -> None:
    assert parse_port("0") == 0


def test_a_wildcard_listener_is_reached_by_loopback() -> None:
    assert [local_address(host, 1) for host in ("", "0.0.0.0", "::", "10.0.0.1", "::2")] == [
        "127.0.0.1:1", "127.0.0.1:1", "[::1]:1", "10.0.0.1:1", "[::2]:1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"\x16\x03\x01\x02", ", which looks like TLS"),
        (b"\x15\x03\x01\x00", ", which looks like TLS"),
        (b"GET / HTTP/1.1", ", which looks like plain text"),
        (b"\x7f\xff\xff\xff", ""),
        (b"\xc3\xa4\xc3\xa4", ""),
    ],
)
def test_foreign_protocols_are_recognized(start: bytes, text: str) -> None:
    assert guess_protocol(start) == text


def test_log_lines_are_limited_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(net.time, "monotonic", lambda: clock[0])
    limiter = LogLimiter()
    assert [limiter.allows_line() for _ in range(LogLimiter.LINES + 2)].count(True) == LogLimiter.LINES
    clock[0] += LogLimiter.SECONDS
    assert limiter.allows_line()
