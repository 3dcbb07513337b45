"""roundrobin is Kafka's: compared with recorded results of Kafka 3.9, and with kafka-python."""

from __future__ import annotations

import warnings

from tests.support.assignments import differs_from_kafka, differs_from_kafka_python

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by importlib.resources.read_text
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor


def test_the_result_is_that_of_kafka() -> None:
    assert list(differs_from_kafka("roundrobin")) == []


def test_the_result_is_that_of_kafka_python() -> None:
    assert list(differs_from_kafka_python("roundrobin", RoundRobinPartitionAssignor)) == []
