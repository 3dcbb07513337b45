"""Logs by their URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.marshal.file_log import FileLog, open_log
from kcoord_wire.marshal.kafka_log import KafkaLog
from kcoord_wire.marshal.log import LogError
from tests.support.fixtures import StartCoordinator


def test_a_folder_is_a_log(tmp_path: Path) -> None:
    for form in ("file:{}", "file://{}"):
        log = open_log(form.format(tmp_path / "a log").replace(" ", "%20"))
        assert isinstance(log, FileLog)
        log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a log"]


def test_a_topic_is_a_log(coordinator: StartCoordinator) -> None:
    address = coordinator(topics={"__marshal": 4, "another": 2}).address
    for path, partitions in (("", 4), ("/", 4), ("/__marshal", 4), ("/another", 2)):
        log = open_log(f"kafka://{address}{path}")
        assert isinstance(log, KafkaLog)
        assert log.partitions == partitions
        log.close()


@pytest.mark.parametrize(
    "url", ["", "kafka", "kafka:host/t", "kafka:///t", "kafka://h:1/a/b", "file", "file:relative", "x:/y"]
)
def test_another_url_is_an_error(url: str) -> None:
    with pytest.raises(LogError, match="names no log: kafka://HOST:PORT"):
        open_log(url)
