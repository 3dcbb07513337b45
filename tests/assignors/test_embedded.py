"""The bytes of subscriptions and assignments."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kcoord_wire as kw
from kcoord_wire.assignors import MemberAssignment, MemberSubscription
from kcoord_wire.assignors.embedded import ConsumerProtocol, subscribed_topics

EMBEDDED = ConsumerProtocol()
OWNED = {"a": [1, 3], "b": [0]}


def test_a_subscription_survives_the_wire() -> None:
    subscription = MemberSubscription(["a", "b"], OWNED, generation=7, rack="r1", user_data=b"data")
    data = EMBEDDED.encode_subscription(subscription)
    assert data[:2] == b"\0\3"
    decoded = EMBEDDED.decode_subscription(data, "i1")
    assert decoded == replace(subscription, instance_id="i1")
    assert subscribed_topics(data) == {"a", "b"}


@pytest.mark.parametrize("version", range(4))
def test_each_version_carries_its_fields(version: int) -> None:
    subscription = MemberSubscription(["a"], OWNED, generation=7, rack="r1", user_data=b"data")
    data = ConsumerProtocol(version).encode_subscription(subscription)
    assert data[:2] == version.to_bytes(2)
    decoded = EMBEDDED.decode_subscription(data, None)
    assert decoded == MemberSubscription(
        ["a"],
        OWNED if version >= 1 else {},
        generation=7 if version >= 2 else -1,
        rack="r1" if version >= 3 else None,
        user_data=b"data",
    )


@pytest.mark.parametrize("version", range(4))
def test_an_assignment_survives_the_wire(version: int) -> None:
    assignment = MemberAssignment({"a": range(1, 4), "b": (0,)}, b"data")
    data = ConsumerProtocol(version).encode_assignment(assignment)
    assert data[:2] == version.to_bytes(2)
    assert EMBEDDED.decode_assignment(data) == MemberAssignment({"a": [1, 2, 3], "b": [0]}, b"data")
    assert EMBEDDED.decode_assignment(memoryview(data)) == EMBEDDED.decode_assignment(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [-1, 4])
def test_only_versions_there_are_can_be_written(version: int) -> None:
    with pytest.raises(ValueError, match="versions 0 to 3"):
        ConsumerProtocol(version)


def test_no_bytes_are_an_empty_assignment() -> None:
    assert EMBEDDED.decode_assignment(b"") == MemberAssignment({})


def test_what_is_read_is_ascending_without_repetition() -> None:
    entry = kw.ConsumerProtocolSubscriptionTopicPartition
    message = kw.ConsumerProtocolSubscription(
        topics=["a"],
        owned_partitions=[
            entry(topic="a", partitions=[3, 1, 3]),
            entry(topic="b", partitions=[]),
            entry(topic="a", partitions=[2]),
        ],
    )
    assert EMBEDDED.decode_subscription(b"\0\1" + kw.encode(message, 1), None).owned == {"a": [1, 2, 3]}


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_a_subscription_is_read(version: int) -> None:
    message = kw.ConsumerProtocolSubscription(topics=["a"])
    data = version.to_bytes(2) + kw.encode(message, version)
    assert list(EMBEDDED.decode_subscription(data, None).topics) == ["a"]
    assert subscribed_topics(data) == {"a"}


def test_topics_of_a_later_version_are_read_as_version_0() -> None:
    data = kw.encode(kw.ConsumerProtocolSubscription(topics=["a"]), 0)
    assert subscribed_topics(b"\0\x63" + data + b"fields to come") == {"a"}


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0", b"\0\0\0\0\0\1"])
def test_unreadable_subscriptions_have_no_topics(data: bytes) -> None:
    assert subscribed_topics(data) is None


def test_unreadable_bytes_are_rejected() -> None:
    for decode in (lambda data: EMBEDDED.decode_subscription(data, None), EMBEDDED.decode_assignment):
        with pytest.raises(kw.DecodeError):
            decode(b"\0\1\0\0\0\1")
