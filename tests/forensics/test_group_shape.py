"""The shape of a group: of captures of real clients, and of virtual groups whose shape is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.group_shape import Fact, shape_of
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK
from tests.support.conversations import CAPTURES
from tests.support.recordings import recording_tap


def facts_of(source: Path) -> dict[str, Fact]:
    shapes: list[list[Fact]] = []
    analyze([source], look=lambda history, exchanges: shapes.append(shape_of(history, exchanges)))
    (shape,) = shapes
    return {fact.name: fact for fact in shape}


def virtual(folder: Path, **options: Any) -> dict[str, Fact]:
    """The facts about three members of 12 partitions, one of which shuts down and starts again 7 s later."""
    settings = MemberOptions(
        session_timeout_ms=20_000, rebalance_timeout_ms=90_000, heartbeat_interval_ms=2_000, commit_ms=None, **options
    )
    writer = RecordingWriter(folder)
    with writer, Cluster(5, topics={"a": 4, "b": 8}, config=QUICK, tap=recording_tap(writer)) as cluster:
        for name in ("m1", "m2", "m3"):
            cluster.member(name, settings)
        cluster.run(60_000)
        cluster.run(cluster.shut_down("m2") + 7_000)
        cluster.member("m2", settings)
        cluster.run(60_000)
    return facts_of(folder)


@pytest.mark.parametrize("capture", ["eager_range", "cooperative", "aiokafka", "static_bounce"])
def test_captures_of_real_clients_have_their_settings(capture: str) -> None:
    facts = facts_of(CAPTURES / f"{capture}.pcap")
    expected = {
        "eager_range": (3, "range", False, False, "librdkafka", 300_000),
        "cooperative": (3, "cooperative-sticky", True, False, "librdkafka", 300_000),
        "aiokafka": (2, "roundrobin", False, False, "aiokafka", 6_000),
        "static_bounce": (2, "range", False, True, "librdkafka", 300_000),
    }[capture]
    names = ("members", "assignor", "is_cooperative", "is_static", "library", "rebalance_timeout_ms")
    assert tuple(facts[name].value for name in names) == expected
    assert facts["topics"].value == {"orders": 4, "payments": 4}
    assert facts["session_timeout_ms"].value == 6_000
    assert abs(facts["heartbeat_interval_ms"].value - 1_000) <= 2
    assert facts["revoke_ms"].value <= 1, "these clients have nothing to close"
    assert facts["members"].source.startswith("generation ")


def test_eager_members_show_how_long_closing_takes(tmp_path: Path) -> None:
    facts = virtual(tmp_path, release_ms=80)
    assert facts["revoke_ms"].value == pytest.approx(80, abs=3)
    assert facts["revoke_ms"].source.startswith("news of a rebalance to the member's JoinGroup")
    assert facts["heartbeat_interval_ms"].value == 2_000
    assert facts["down_ms"].value == pytest.approx(7_000, abs=20)
    assert facts["topics"].value == {"a": 4, "b": 8}
    assert (facts["session_timeout_ms"].value, facts["rebalance_timeout_ms"].value) == (20_000, 90_000)
    assert "assign_ms" not in facts, "offsets are fetched at once, so that it cannot be seen"


def test_cooperative_members_show_it_in_the_follow_up(tmp_path: Path) -> None:
    facts = virtual(tmp_path, release_ms=80, poll_ms=40, assignors=["cooperative-sticky"])
    assert 78 <= facts["revoke_ms"].value <= 80 + 40 + 3, "with the time until the application polls"
    assert 0 < facts["poll_ms"].value <= 40 + 3
    assert facts["is_cooperative"].value is True


def test_static_members_are_known_by_their_instance_ids(tmp_path: Path) -> None:
    settings = MemberOptions(instance_id="i1", commit_ms=None)
    with RecordingWriter(tmp_path) as writer, Cluster(1, config=QUICK, tap=recording_tap(writer)) as cluster:
        cluster.member("m1", settings)
        cluster.run(30_000)
    facts = facts_of(tmp_path)
    assert facts["is_static"] == Fact("is_static", True, "1 of 1 members have an instance id")
    assert "revoke_ms" not in facts


def test_a_group_that_only_joins_has_few_facts(tmp_path: Path) -> None:
    """The capture ends before the first assignment."""
    with RecordingWriter(tmp_path) as writer, Cluster(1, tap=recording_tap(writer)) as cluster:
        cluster.member("m1")
        cluster.run(1_000)
    assert facts_of(tmp_path).keys() <= {"is_static", "library", "session_timeout_ms", "rebalance_timeout_ms"}
