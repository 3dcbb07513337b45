"""The topics as the coordinator looks them up."""

from __future__ import annotations

import uuid

import pytest

from kcoord_wire.worlds.group.wire import VirtualTopics


def test_topics_are_found_by_name_and_by_id() -> None:
    topics = VirtualTopics({"a": 3, "b": 1})
    assert (topics.partitions("a"), topics.partitions("c")) == (3, None)
    topic_id = topics.id_of("b")
    assert topic_id is not None
    assert topics.name_of(topic_id) == "b"
    assert topics.id_of("c") is None
    assert topics.name_of(uuid.UUID(int=1)) is None


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_topic_needs_partitions(count: int) -> None:
    with pytest.raises(ValueError, match="topic 'o' needs one partition or more"):
        VirtualTopics({"o": count})
