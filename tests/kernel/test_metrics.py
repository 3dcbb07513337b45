"""The metrics port: values escaped as Prometheus's own parser reads them, clients that send nothing, the end."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
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


def test_a_silent_scraper_is_disconnected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kcoord_wire.kernel.metrics.SCRAPE_SECONDS", 0.1)
    with Seven().serve() as server, socket.create_connection(("127.0.0.1", server.port), 10) as silent:
        assert silent.recv(1) == b""
    assert capsys.readouterr().err == ""
