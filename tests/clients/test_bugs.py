"""The table of client bugs, and which versions it calls affected."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.clients.bugs import CLIENT_BUGS, is_affected
from kcoord_wire.forensics.detectors import DETECTORS


@pytest.mark.parametrize(
    ("bug", "software", "affected"),
    [
        ("KAFKA-12983", "apache-kafka-java 2.8.0", True),
        ("KAFKA-12983", "apache-kafka-java 2.8.1", False),
        ("KAFKA-12983", "apache-kafka-java 2.7.1", True),
        ("KAFKA-12983", "apache-kafka-java 2.7.2", False),
        ("KAFKA-12983", "apache-kafka-java 2.6.3", True),
        ("KAFKA-12983", "apache-kafka-java 2.3.1", False),
        ("KAFKA-12983", "apache-kafka-java 3.0.0", False),
        ("KAFKA-12983", "apache-kafka-java 4.1.0", False),
        ("KAFKA-15106", "apache-kafka-java 3.5.0", True),
        ("KAFKA-15106", "apache-kafka-java 3.5.1", True),
        ("KAFKA-15106", "apache-kafka-java 3.5.2", False),
        ("KAFKA-15106", "apache-kafka-java 3.4.1", False),
        ("KAFKA-15170", "apache-kafka-java 3.6.2", True),
        ("KAFKA-15170", "apache-kafka-java 3.7.0", True),
        ("KAFKA-15170", "apache-kafka-java 3.7.1", False),
        ("librdkafka#4783", "librdkafka 2.6.0", True),
        ("librdkafka#4783", "librdkafka 2.6.0-RC1", True),
        ("librdkafka#4783", "librdkafka v2.5.3", True),
        ("librdkafka#4783", "librdkafka 2.10.0", False),
        ("librdkafka#4783", "librdkafka 1.5.3", False),
        ("librdkafka#4783", "kgo 2.6.0", False),
        ("librdkafka#4783", "confluent-kafka-python 2.6.0-rdkafka-2.6.0", True),
        ("librdkafka#4783", "confluent-kafka-python 2.6.0-rdkafka-2.6.1", False),
        ("librdkafka#4783", "confluent-kafka-go v2.5.0-librdkafka-2.5.0", True),
        ("librdkafka#3891", "librdkafka 1.9.0", False),
        ("franz-go#686", "kgo v1.16.1", True),
        ("franz-go#686", "kgo v1.17.0", False),
    ],
)
def test_versions_are_placed_in_their_line_of_releases(bug: str, software: str, affected: bool) -> None:
    assert is_affected(CLIENT_BUGS[bug], software) is affected


@pytest.mark.parametrize("version", ["3.5.0-ccs", "3.5.1-ce", "3.5.1-SNAPSHOT", "3.5.0-rc1", "3.5.0.1"])
def test_suffixes_of_versions_do_not_hide_the_version(version: str) -> None:
    assert is_affected(CLIENT_BUGS["KAFKA-15106"], f"apache-kafka-java {version}")


@pytest.mark.parametrize(
    "software",
    [
        None,
        "",
        "apache-kafka-java",
        "apache-kafka-java unknown",
        "apache-kafka-java 2",
        "apache-kafka-java 3.5.x",
        "apache-kafka-java 7.5.0-ccs",
        "apache-kafka-java 3.5.2-RC0",
        " 3.5.0",
        "apache-kafka-java 3.5.0 extra",
    ],
)
def test_what_cannot_be_placed_is_not_affected(software: str | None) -> None:
    assert not is_affected(CLIENT_BUGS["KAFKA-15106"], software)


def test_every_bug_names_its_source_and_a_detector() -> None:
    for name, bug in CLIENT_BUGS.items():
        assert name == bug.name
        assert bug.reference.startswith("https://")
        assert bug.detectors
        assert set(bug.detectors) <= set(DETECTORS), name
        assert list(bug.fixed) == sorted(bug.fixed, key=lambda version: [int(part) for part in version.split(".")])


def test_the_page_has_a_row_for_every_bug() -> None:
    page = (Path(__file__).parents[2] / "docs" / "known-bugs.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert rows == [
        f"| [{bug.name}]({bug.reference}) | {bug.software or 'aiokafka (states none)'} | {bug.since or 'not known'} "
        f"| {', '.join(bug.fixed) or 'open'} | {bug.shape} | {', '.join(bug.detectors)} |"
        for bug in CLIENT_BUGS.values()
    ]
