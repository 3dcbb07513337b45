"""What is dropped of topics: the oldest of the largest, what a topic may hold, what has expired; and its warnings."""

from __future__ import annotations

import pytest

from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.broker import Broker, batch, values

LARGE = batch(bytes(50_000))
DAY = 86_400_000


def ends(broker: Broker, topic: str = "orders", partition: int = 0) -> tuple[int, int]:
    """The first and the next offset."""
    found = broker.topics.catalog.named(topic)
    assert found is not None
    log = found.logs[partition]
    return log.start_offset, log.end_offset


def test_the_least_recent_records_of_all_topics_go_first(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({"orders": 2, "late": 1}, limits=TopicLimits(retention_bytes=40 * len(LARGE)))
    for partition in (0, 1, 1) * 20:
        broker.produce(LARGE, partition=partition)
    broker.produce(LARGE, topic="late")
    starts = [ends(broker, partition=number)[0] for number in (0, 1)]
    assert 30 <= 61 - sum(starts) <= 40
    assert starts[0] * 2 == pytest.approx(starts[1], abs=4)  # the age decides, not the partition
    assert ends(broker, "late") == (0, 1)
    assert broker.fetch(starts[0] - 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    fetched = broker.fetch(starts[0])
    assert (values(fetched.records)[0][0], fetched.log_start_offset) == (starts[0], starts[0])
    assert broker.list_offset(-2).offset == broker.list_offset(0).offset == starts[0]
    (warning,) = [record.message for record in caplog.records]
    setting = "--retention-bytes (TopicLimits.retention_bytes)"
    assert warning.startswith(f"records of topic orders are dropped by {setting}: offsets 0 to ")
    assert "all topics together may hold 2,0" in warning


def test_a_partition_that_is_still_written_loses_its_newest_last() -> None:
    """It has one segment, with old records and new ones: others, that are not written any more, go before it."""
    broker = Broker({"orders": 1, "slow": 1}, limits=TopicLimits(retention_bytes=40 * len(LARGE)))
    for _ in range(100):
        broker.produce(batch(b"now"), topic="slow")
        broker.produce(LARGE)
    assert ends(broker, "slow") == (0, 100)
    assert ends(broker)[0] > 60


def test_the_topic_that_holds_most_pays() -> None:
    """The only record of another one is the oldest of all, and of every partition of the largest one less is there."""
    broker = Broker({"orders": 20, "slow": 1}, limits=TopicLimits(retention_bytes=40 * len(LARGE)))
    for _ in range(3):
        broker.produce(LARGE, topic="slow")
    for partition in [*range(20)] * 4:
        broker.produce(LARGE, partition=partition)
    assert ends(broker, "slow") == (0, 3)
    assert {ends(broker, partition=partition)[0] for partition in range(20)} <= {1, 2, 3}


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topics_are_spared(policy: str) -> None:
    broker = Broker({"orders": 1, "table": 1}, limits=TopicLimits(retention_bytes=40 * len(LARGE)))
    broker.topics.catalog.configure({"table": {"cleanup.policy": policy}})
    for _ in range(30):
        broker.produce(batch(bytes(50_000), key=b"k"), topic="table")
    for _ in range(100):
        broker.produce(LARGE)
    assert ends(broker, "table") == (0, 30)
    assert ends(broker)[0] >= 90


def test_compacted_topics_lose_records_last(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({"orders": 1, "table": 1}, limits=TopicLimits(retention_bytes=40 * len(LARGE)))
    broker.topics.catalog.configure({"table": {"cleanup.policy": "compact"}})
    broker.produce(LARGE)
    for _ in range(60):
        broker.produce(batch(bytes(50_000), key=b"k"), topic="table")
    assert ends(broker) == (1, 1)
    assert 20 <= ends(broker, "table")[0] < 30
    said = [record.message for record in caplog.records if "dropped" in record.message]
    assert [line.split()[3] for line in said] == ["orders", "table"]
    assert "since all topics together may hold 2,0" in said[0]
    assert "and none is left that is not compacted; further" in said[1]


def test_one_batch_larger_than_all_may_be_is_dropped() -> None:
    broker = Broker(limits=TopicLimits(retention_bytes=10_000))
    assert broker.produce(LARGE).error_code == 0
    assert ends(broker) == (1, 1)
    assert broker.produce(batch(b"small")).base_offset == 1
    assert values(broker.fetch(1).records) == [(1, b"small")]


def test_what_empty_partitions_cost_cannot_be_dropped() -> None:
    broker = Broker(limits=TopicLimits(retention_bytes=1))
    assert [broker.produce(LARGE, partition=partition).error_code for partition in (0, 1, 0)] == [0, 0, 0]
    assert [ends(broker, partition=partition) for partition in (0, 1)] == [(2, 2), (1, 1)]


def test_what_a_partition_may_hold(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({"orders": 2}, limits=TopicLimits(retention_bytes=16 * len(LARGE)))  # segments of one batch
    broker.topics.catalog.configure({"orders": {"retention.bytes": str(2 * len(LARGE))}})
    for _ in range(10):
        broker.produce(LARGE)
    assert ends(broker) == (8, 10)
    assert ends(broker, partition=1) == (0, 0)
    (warning,) = [record.message for record in caplog.records]
    assert "dropped by retention.bytes: offsets 0 to 0 of orders-0" in warning


@pytest.mark.parametrize("configs", [{}, {"retention.ms": "-1"}, {"cleanup.policy": "compact"}])
def test_what_has_expired(configs: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({"orders": 1})
    broker.topics.catalog.configure({"orders": configs})
    broker.now = 100 * DAY
    broker.produce(batch(b"old", at=95 * DAY, key=b"k"))
    assert broker.due() == broker.now + 300_000
    broker.tick(broker.now + 300_000)
    assert ends(broker) == (0, 1)
    if configs:
        assert broker.due() is None
        broker.tick(1_000 * DAY)
        assert ends(broker) == (0, 1)
        assert not caplog.records
        return
    assert broker.due() == broker.now + DAY
    broker.tick(102 * DAY)
    assert (ends(broker), broker.due()) == ((0, 1), 102 * DAY + 300_000)
    broker.tick(102 * DAY + 300_000)
    assert ends(broker) == (1, 1)
    assert broker.due() is None
    assert broker.produce(batch(b"new", at=102 * DAY)).base_offset == 1
    (warning,) = [record.message for record in caplog.records]
    assert "dropped by retention.ms: offsets 0 to 0 of orders-0" in warning


@pytest.mark.parametrize("value", [0, -1, "2G", 1.5, True])
def test_limits_are_checked(value: object) -> None:
    with pytest.raises(ValueError, match="retention_bytes is a whole number from 1 up"):
        TopicLimits(retention_bytes=value)  # type: ignore[arg-type]  # what is refused
