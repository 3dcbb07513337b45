"""What has changed since an earlier look, and the traffic that a report is made of."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import kcoord_wire as kw
from kcoord_wire.coordinator import Fault
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.coordinator.traffic import Traffic, TrafficEvent
from kcoord_wire.recorder.recording import Damage, Recorded, read_recording, recording_files
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import VERSIONS, become_stable, commit
from tests.support.waiting import eventually
from tests.support.wire import Wire


def beat_request(member: str, **fields: object) -> kw.ConsumerGroupHeartbeatRequest:
    request = kw.ConsumerGroupHeartbeatRequest(group_id="mail", member_id=member, **fields)
    request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 30_000, ["orders"], []
    return request


def test_a_look_has_what_has_changed_since(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as wire:
        heartbeat = become_stable(wire, "billing")
        first = c.changes()
        assert [group.group_id for group in first.groups] == ["billing"]
        assert [(one.group_id, one.outcome) for one in first.rebalances] == [("billing", "stable")]
        assert wire.call(heartbeat, 4).error_code == 0
        assert commit(wire, "offsets", 1) == 0
        second = c.changes(first)
        assert [group.group_id for group in second.groups] == ["offsets"], "a heartbeat changes nothing"
        assert second.is_news(first)
        assert commit(wire, "offsets", 2) == 0
        third = c.changes(second)
        assert not third.is_news(second), "nor does a commit"
        c.trigger_rebalance("billing")
        fourth = c.changes(third)
        assert [group.rebalance is None for group in fourth.groups] == [False]
        assert wire.call(kw.DeleteGroupsRequest(groups_names=["offsets"]), 1).results[0].error_code == 0
        assert c.changes(fourth).gone == ["offsets"]
        assert c.changes(fourth, most=0).gone == ["billing", "offsets"]
        assert c.changes(fourth, most=0).left_out == 1


def test_a_member_of_the_new_protocol_is_a_change(coordinator: StartCoordinator) -> None:
    c = coordinator()
    with Wire(c.address) as wire:
        joined = wire.call(beat_request("a"), 1)
        first = c.changes()
        [group] = first.groups
        assert (group.generation_id, group.assignment_epoch, group.protocol) == (2, 2, "uniform")
        assert [member.member_epoch for member in group.members] == [joined.member_epoch] == [2]
        assert wire.call(beat_request("a", member_epoch=2), 1).error_code == 0
        assert not c.changes(first).is_news(first)
        wire.call(beat_request("b"), 1)
        assert [len(group.members) for group in c.changes(first).groups] == [2]


def test_a_broker_that_stops_is_news(coordinator: StartCoordinator) -> None:
    c = coordinator(brokers=2)
    first = c.changes()
    c.stop_broker(1)
    second = c.changes(first)
    assert second.is_news(first)
    assert second.brokers == ["running", "stopped"]
    assert set(second.leaders) == {0}


def recorded(folder: Path) -> list[Recorded | Damage]:
    return [record for path in recording_files(folder) for record in read_recording(path)]


def test_the_traffic_is_a_recording(coordinator: StartCoordinator, tmp_path: Path) -> None:
    c, numbers = coordinator(), count()
    with Wire(c.address) as before:
        before.call(VERSIONS, 3)
        c.keep_traffic()
        with Wire(c.address) as wire:
            heartbeat = become_stable(wire, "billing")
            with c.faults(Fault("duplicate", api="Heartbeat", on="response", count=1)):
                sent = wire.send(heartbeat, 4)
                assert wire.receive_body()[:4] == wire.receive_body()[:4] == sent.to_bytes(4, "big")
            wire.call(kw.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 2)
            before.call(heartbeat, 4)

        def written() -> list[Recorded | Damage]:
            folder = tmp_path / str(next(numbers))
            c.write_recording(folder)
            return recorded(folder)

        found = eventually(written, until=lambda records: getattr(records[-1], "direction", "") == "closed")
    directions = [record.direction for record in found if isinstance(record, Recorded)]
    pairs = ["request", "response"] * 4
    assert directions == ["opened", *pairs, "response", "closed"], "of one connection, and of groups alone"
    assert [record.body[:2] for record in found if isinstance(record, Recorded)][1:9:2] == [
        b"\0\x0b", b"\0\x0b", b"\0\x0e", b"\0\x0c",
    ]  # fmt: skip


def test_nothing_of_an_authentication_is_kept(coordinator: StartCoordinator, tmp_path: Path) -> None:
    c = coordinator(users=Users({"alice": "secret"}))
    c.keep_traffic()
    for version in (0, 1):  # version 0 is followed by bytes that are no request
        with Wire(c.address) as wire:
            assert wire.call(kw.SaslHandshakeRequest(mechanism="PLAIN"), version).error_code == 0
            if version:
                wire.call(kw.SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 1)
            else:
                wire.send_raw(kw.frame(b"\0alice\0secret"))
                wire.receive_body()
            become_stable(wire, f"billing-{version}")
    c.write_recording(tmp_path / "recording")
    data = b"".join(path.read_bytes() for path in recording_files(tmp_path / "recording"))
    assert b"secret" not in data
    assert b"billing-0" in data
    assert b"billing-1" in data


def test_of_much_traffic_the_last_is_kept() -> None:
    traffic = Traffic(most=3_000)
    kept, gone = traffic.opened("a"), traffic.opened("b")
    for at in range(50):
        traffic.frame(gone, "request", b"%d" % at)
    traffic.closed(gone)
    traffic.frame(kept, "request", b"last")
    events = traffic.events()
    assert [event.direction for event in events[:2]] == ["opened", "request"]
    assert events[0].connection == kept, "its opening is older than what is kept"
    assert 10 < len(events) < 16
    assert events[-1] == TrafficEvent(events[-1].time_ns, kept, "request", b"last")
