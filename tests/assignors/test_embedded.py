"""The bytes of subscriptions and assignments."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.assignors import MemberSubscription, TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol, subscribed_topics

EMBEDDED = ConsumerProtocol()
OWNED = [TopicPartition("a", 1), TopicPartition("a", 3), TopicPartition("b", 0)]


def test_a_subscription_survives_the_wire() -> None:
    subscription = MemberSubscription(["a", "b"], OWNED, generation=7, user_data=b"data")
    data = EMBEDDED.encode_subscription(subscription)
    assert data[:2] == b"\0\3"
    decoded = EMBEDDED.decode_subscription(data, "i1")
    assert decoded == MemberSubscription(["a", "b"], OWNED, generation=7, instance_id="i1", user_data=b"data")
    assert subscribed_topics(data) == {"a", "b"}


def test_an_assignment_survives_the_wire() -> None:
    data = EMBEDDED.encode_assignment(OWNED)
    assert data[:2] == b"\0\1"
    assert list(EMBEDDED.decode_assignment(data)) == OWNED
    assert list(EMBEDDED.decode_assignment(memoryview(data))) == OWNED  # type: ignore[arg-type]


def test_no_bytes_are_an_empty_assignment() -> None:
    assert list(EMBEDDED.decode_assignment(b"")) == []


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
