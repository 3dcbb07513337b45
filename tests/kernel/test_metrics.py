"""The metrics port: values escaped as Prometheus's own parser reads them, who may scrape, the end."""

from __future__ import annotations

import gzip
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kcoord_wire.kernel.metrics import Exporter, family


class Seven(Exporter):
    """Two families: a counter, and a gauge with a label."""

    def __init__(self, label: str = "") -> None:
        self.label = label

    def collect(self) -> Iterator[Any]:
        yield family("Counter", "accepted", "Accepted", {(): 7})
        yield family("Gauge", "held", "Held", {(self.label,): 1}, "group")


@pytest.mark.parametrize("label", ['a "quoted" \\ one', "two\nlines", "\u2028é\x00", "{x=1} # HELP"])
def test_a_label_is_read_as_it_was_written(label: str) -> None:
    families = text_string_to_metric_families(Seven(label).exposition().decode())
    labels = [sample.labels for each in families for sample in each.samples if each.name == "kcoord_held"]
    assert labels == [{"group": label}]


def test_registries_are_apart() -> None:
    one, other = Seven(), Seven()
    assert one.registry is one.registry
    assert one.registry is not other.registry


def test_serving() -> None:
    exporter = Seven()
    with exporter.serve() as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            assert "kcoord_accepted_total 7.0" in answer.read().decode()
        with pytest.raises(OSError, match="in use"):
            exporter.serve(port=server.port)
        threads = threading.active_count()
    assert threading.active_count() < threads


def scrape(port: int, host: str, *fields: str, path: str = "/metrics") -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *fields, "", ""]
        connection.sendall("\r\n".join(lines).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_scrape_names_an_address_or_this_machine() -> None:
    """Against DNS rebinding: a browser sends the name of the page's site."""
    with Seven().serve(known=["broker.example"]) as server:
        own = (
            "127.0.0.1",
            "[::1]:9100",
            "10.1.2.3:80",
            "localhost",
            "LocalHost:1",
            socket.gethostname(),
            "broker.example",
        )
        for host in own:
            assert b"kcoord_accepted_total 7.0" in scrape(server.port, host), host
        for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "[evil]", "broker.example:x"):
            for path in ("/metrics", "/", "/favicon.ico"):
                assert scrape(server.port, host, path=path).startswith(b"HTTP/1.1 403 "), host
        assert scrape(server.port, "localhost", "Origin: http://evil.example").startswith(b"HTTP/1.1 403 ")


def test_a_scraper_chooses_the_form() -> None:
    with Seven().serve() as server:
        accept = "Accept: application/openmetrics-text;version=1.0.0"
        head, _, body = scrape(server.port, "localhost", accept, "Accept-Encoding: gzip").partition(b"\r\n\r\n")
        assert b"Content-Type: application/openmetrics-text" in head
        assert gzip.decompress(body).endswith(b"# EOF\n")


def test_silent_scrapers_keep_nobody_out(capsys: pytest.CaptureFixture[str]) -> None:
    with Seven().serve() as server, ExitStack() as held:
        for _ in range(200):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert b"kcoord_accepted_total 7.0" in scrape(server.port, "localhost")
    assert capsys.readouterr().err == ""
