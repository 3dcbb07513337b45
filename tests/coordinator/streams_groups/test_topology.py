"""Internal topics: how many partitions they get, and what is wrong with topologies. That it is so in Kafka, too, is in
tests/interop."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.streams_groups.topology import (
    MOST_TASKS,
    ConfiguredTopology,
    Status,
    configure,
    topology_from,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.streams_script import COUNTING, Subtopology, internal, subtopology

TOPICS = {"orders": 3, "payments": 2, "wide": 6}


def configured(*subtopologies: Subtopology, **topics: int) -> ConfiguredTopology:
    asked = m.StreamsGroupHeartbeatRequestTopology(epoch=1, subtopologies=list(subtopologies))
    return configure(topology_from(asked), {**TOPICS, **topics}.get)


def missing(*subtopologies: Subtopology, **topics: int) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in configured(*subtopologies, **topics).missing}


def together(*sources: int, repartition: tuple[int, ...] = ()) -> m.StreamsGroupHeartbeatRequestCopartitionGroup:
    return m.StreamsGroupHeartbeatRequestCopartitionGroup(
        source_topics=list(sources), repartition_source_topics=list(repartition)
    )


def test_internal_topics_have_the_partitions_of_their_sources() -> None:
    assert missing(*COUNTING) == {"g-words": 3, "g-counts": 3}
    found = configured(*COUNTING)
    assert found.problem is not None
    assert found.problem.status is Status.MISSING_INTERNAL_TOPICS
    assert found.subtopologies is not None
    assert [each.tasks for each in found.subtopologies.values()] == [3, 3]


def test_topics_that_exist_are_not_missing() -> None:
    found = configured(*COUNTING, **{"g-words": 3, "g-counts": 3})
    assert (found.problem, found.missing) == (None, ())


def test_the_widest_source_decides() -> None:
    chain = [
        subtopology("0", "orders", repartition_sink_topics=["r1"]),
        subtopology("1", "wide", repartition_source_topics=[internal("r1")], repartition_sink_topics=["r2"]),
        subtopology("2", repartition_source_topics=[internal("r2")], state_changelog_topics=[internal("c")]),
    ]
    assert missing(*chain) == {"r1": 3, "r2": 6, "c": 6}


def test_a_number_in_the_topology_is_kept() -> None:
    fixed = [
        subtopology("0", "orders", repartition_sink_topics=["r"]),
        subtopology("1", repartition_source_topics=[internal("r", 8)], state_changelog_topics=[internal("c")]),
    ]
    assert missing(*fixed) == {"r": 8, "c": 8}


def test_repartition_topics_follow_what_is_beside_them() -> None:
    join = subtopology(
        "1", "wide", repartition_source_topics=[internal("r")], copartition_groups=[together(0, repartition=(0,))]
    )
    assert missing(subtopology("0", "orders", repartition_sink_topics=["r"]), join) == {"r": 6}


@pytest.mark.parametrize(
    ("subtopologies", "topics", "status"),
    [
        ([subtopology("0", "nowhere")], {}, Status.MISSING_SOURCE_TOPICS),
        (COUNTING, {"g-words": 4}, Status.INCORRECTLY_PARTITIONED_TOPICS),
        (
            [subtopology("0", "orders", "payments", copartition_groups=[together(0, 1)])],
            {},
            Status.INCORRECTLY_PARTITIONED_TOPICS,
        ),
        (
            [
                subtopology("0", "orders", repartition_sink_topics=["r"]),
                subtopology(
                    "1",
                    "orders",
                    repartition_source_topics=[internal("r", 2)],
                    copartition_groups=[together(0, repartition=(0,))],
                ),
            ],
            {},
            Status.INCORRECTLY_PARTITIONED_TOPICS,
        ),
    ],
)
def test_topics_that_do_not_fit_are_a_status(
    subtopologies: list[Subtopology], topics: dict[str, int], status: Status
) -> None:
    found = configured(*subtopologies, **topics)
    assert found.problem is not None
    assert (found.problem.status, found.subtopologies) == (status, None)


@pytest.mark.parametrize(
    ("subtopologies", "error"),
    [
        ([subtopology("0")], ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ([subtopology("0", "orders", repartition_source_topics=[internal("r")])], ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (
            [subtopology("0", repartition_source_topics=[internal("r")], repartition_sink_topics=["r"])],
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
        ([subtopology("0", "orders"), subtopology("0", "wide")], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([subtopology("0", "orders", copartition_groups=[together(7)])], ErrorCode.UNKNOWN_SERVER_ERROR),
        (
            [
                subtopology("0", "orders", repartition_sink_topics=["r"]),
                subtopology("1", repartition_source_topics=[internal("r", -5)]),
            ],
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ),
    ],
)
def test_a_wrong_topology_is_refused(subtopologies: list[Subtopology], error: ErrorCode) -> None:
    with pytest.raises(Refused) as caught:
        configured(*subtopologies)
    assert caught.value.error is error


def test_tasks_are_bounded() -> None:
    with pytest.raises(Refused, match="tasks") as caught:
        configured(*(subtopology(str(n), "huge") for n in range(3)), huge=MOST_TASKS // 2)
    assert caught.value.error is ErrorCode.STREAMS_INVALID_TOPOLOGY
