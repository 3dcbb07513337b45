"""The loop: the first poll has to be answered, later ones may fail, and the views print what has changed.

Polls of a real coordinator over sockets: what they show, what they ask, and what goes wrong.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from kcoord_wire.clients.librdkafka import error_text
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.watch import host
from kcoord_wire.watch.groups import Watched
from kcoord_wire.watch.host import AdminPolls, JsonView, LineView, ScreenView, Stopped, Watch, WatchError
from kcoord_wire.watch.seen import Missed, Poll, Unanswered
from tests.support.fixtures import StartCoordinator
from tests.support.waiting import eventually
from tests.support.watching import SECOND, START, group, member

ONE = group("Stable", member("c-1", 0))
TWO = group("Stable", member("c-1", 0), member("c-2", 1))
REFUSED = Missed(START, "k1:9092", "Connection refused")


def poll(second: int, *groups: Any) -> Poll:
    return Poll(START + second * SECOND, {each.group_id: each for each in groups})


class Polls:
    """Answers as scripted; then it was stopped."""

    left_out = 0

    def __init__(self, script: Iterable[Poll | Missed]) -> None:
        self._script = iter(script)
        self.asked: list[float] = []
        self.is_stopped = False

    def poll(self) -> Poll | Missed:
        self.asked.append(time.monotonic())
        found = next(self._script, None)
        if found is None:
            raise Stopped
        return found

    def stop(self) -> None:
        self.is_stopped = True


def run(script: Iterable[Poll | Missed], view: Any, *, interval: float = 0.001, times: int | None = None) -> Polls:
    polls: Any = Polls(script)
    Watch(polls, Watched("k1:9092"), interval).run(view, times=times)
    found: Polls = polls
    return found


def test_lines() -> None:
    out = io.StringIO()
    run([poll(0, ONE), poll(2, ONE), poll(4, TWO)], LineView(out))
    assert out.getvalue().splitlines() == [
        "12:00:00 billing: Stable, 1 member: c-1 (10.0.0.1)",
        "12:00:04 billing: member c-2 (10.0.0.2) joined; rebalance #1 between two polls: new member (80%)",
    ]


def test_json_objects() -> None:
    lines: list[dict[str, object]] = []
    run([poll(0, ONE), poll(2, TWO)], JsonView(lines.append, io.StringIO()))
    assert [line["kind"] for line in lines] == ["group seen", "member joined", "rebalance ended"]
    assert json.loads(json.dumps(lines[1]))["client_id"] == "c-2"


def test_a_screen_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "20")
    out = io.StringIO()
    run([poll(0, ONE), poll(2, TWO)], ScreenView(out, None))
    first, second = out.getvalue().split("\x1b[H")[1:]
    assert "c-2" not in first
    assert "member c-2 (10.0.0.2) joined" in second
    assert all(part.endswith("\x1b[J") and part.count("\n") < 20 for part in (first, second))


def test_the_first_poll_has_to_be_answered() -> None:
    with pytest.raises(WatchError, match="no broker answers at k1:9092: Connection refused; check address"):
        run([REFUSED], LineView(io.StringIO()))


def test_later_polls_are_tried_again_with_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LONGEST_S", 0.4)
    out = io.StringIO()
    polls = run([poll(0, ONE), REFUSED, REFUSED, REFUSED, REFUSED, poll(9, ONE)], LineView(out), interval=0.05)
    waits = [later - earlier for earlier, later in pairwise(polls.asked)]
    assert all(wait >= least for wait, least in zip(waits, (0.05, 0.1, 0.2, 0.4, 0.4, 0.05), strict=True))
    assert [line.partition(" ")[2] for line in out.getvalue().splitlines()[1:]] == [
        "k1:9092 does not answer: Connection refused",
        "k1:9092 answers again",
        "billing: described again",
    ]


@pytest.mark.parametrize("answers", [True, False])
def test_one_broker_of_several_is_not_the_cluster(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """All groups that there are have the coordinator that was stopped: the others answer, with no group."""
    polls = AdminPolls("127.0.0.1:1", patience_s=0.1)
    monkeypatch.setattr(polls, "_list", lambda: {"billing": ""})
    monkeypatch.setattr(polls, "_describe", lambda *_: ({}, {"billing": Unanswered("broker down", "timed out")}))
    monkeypatch.setattr(polls, "_offsets", lambda _: ({}, {}))
    monkeypatch.setattr(polls, "_is_any_answering", lambda: answers)
    found = polls.poll()
    assert isinstance(found, Poll) is answers
    if isinstance(found, Poll):
        assert found.unanswered["billing"].text == "timed out"


def test_without_any_broker_none_is_answering() -> None:
    assert not AdminPolls("127.0.0.1:1", patience_s=0.2)._is_any_answering()


def test_a_reason_is_never_empty() -> None:
    assert error_text(KafkaError(KafkaError._TRANSPORT, "")) == "_TRANSPORT"
    assert error_text(KafkaException(KafkaError(KafkaError._TRANSPORT, "gone"))) == "gone"


def test_it_ends_after_so_many_polls() -> None:
    assert len(run([poll(0, ONE)] * 9, LineView(io.StringIO()), times=2).asked) == 2


def test_stop_ends_the_loop() -> None:
    polls: Any = Polls([poll(0, ONE)] * 9)
    watch = Watch(polls, Watched("k1:9092"), 3600)

    class Stopping:
        def show(self, *_: object) -> None:
            watch.stop()

    watch.run(Stopping())
    assert (len(polls.asked), polls.is_stopped) == (1, True)


ASKS = {
    "ApiVersions",
    "Metadata",
    "FindCoordinator",
    "ListGroups",
    "DescribeGroups",
    "ConsumerGroupDescribe",
    "OffsetFetch",
    "ListOffsets",
}


NOBODY = "127.0.0.1:1"  # the port of tcpmux, which nothing serves


@contextmanager
def consuming(coordinator: Coordinator, client_id: str = "c-1") -> Iterator[Consumer]:
    """A consumer of orders in group billing that has its partitions and has committed offset 2 of one."""
    consumer = Consumer({"bootstrap.servers": coordinator.address, "group.id": "billing", "client.id": client_id})
    consumer.subscribe(["orders"])
    try:
        eventually(lambda: (consumer.poll(0.05), consumer.assignment())[1])
        consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
        yield consumer
    finally:
        consumer.close()


def answered(polls: AdminPolls) -> Poll:
    found = polls.poll()
    assert isinstance(found, Poll), found
    return found


def requests_of(coordinator: Coordinator) -> set[str]:
    families = text_string_to_metric_families(coordinator.metrics())
    samples = [sample for family in families for sample in family.samples]
    return {sample.labels["api"] for sample in samples if sample.name == "kcoord_requests_total"}


def test_a_poll_shows_members_offsets_and_ends(coordinator: StartCoordinator) -> None:
    started = coordinator()
    producer = Producer({"bootstrap.servers": started.address})
    for _ in range(5):
        producer.produce("orders", value=b"v", partition=0)
    assert producer.flush(10) == 0
    with consuming(started):
        poll = answered(AdminPolls(started.address))
    group = poll.groups["billing"]
    (member,) = group.members.values()
    assert (group.state, group.protocol, group.assignor) == ("Stable", "classic", "range")
    assert group.coordinator == started.address
    assert (member.client_id, member.client_host, member.instance_id) == ("c-1", "127.0.0.1", None)
    assert member.assigned == {("orders", partition) for partition in range(12)}
    assert poll.committed == {"billing": {("orders", 0): 2}}
    assert poll.ends["orders", 0] == 5
    assert len(poll.ends) == 12


def test_it_only_asks(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        pass
    before = requests_of(started)
    fresh = coordinator()
    polls = AdminPolls(fresh.address, offsets_every_s=0)
    for _ in range(3):
        answered(polls)
    assert requests_of(fresh) <= ASKS
    assert answered(polls).groups == {}, "and it is a member of nothing"
    assert "JoinGroup" in before, "the metric shows it where there is one"


def test_a_group_with_members_is_left_alone(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        before = started.metrics().count("kcoord_rebalances_total{"), requests_of(started)
        polls = AdminPolls(started.address, offsets_every_s=0)
        seen = [answered(polls).groups["billing"] for _ in range(20)]
        after = started.metrics().count("kcoord_rebalances_total{"), requests_of(started)
    assert len({(group.state, *group.members) for group in seen}) == 1
    assert after[0] == before[0]
    assert after[1] - before[1] <= ASKS


def test_empty_groups_are_described_once(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        pass
    polls = AdminPolls(started.address)
    first, second = answered(polls), answered(polls)
    assert first.groups["billing"].state == "Empty"
    assert second.groups == first.groups
    assert (first.committed, second.committed) == ({"billing": {("orders", 0): 2}}, {}), "offsets are read less often"


def test_only_the_groups_that_are_wanted(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        assert set(answered(AdminPolls(started.address, groups=["billing", "audit"])).groups) == {"billing"}
        assert answered(AdminPolls(started.address, groups=["audit"])).groups == {}
        polls = AdminPolls(started.address, choose=lambda names: sorted(names)[:0])
        assert (answered(polls).groups, polls.left_out) == ({}, 1)


def test_a_group_that_is_loading(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        started.add_fault(Fault("error", api="DescribeGroups", error="COORDINATOR_LOAD_IN_PROGRESS"))
        found = answered(AdminPolls(started.address, patience_s=1))
    assert [(name, why.kind) for name, why in found.unanswered.items()] == [("billing", "loading")]


def test_a_group_that_may_not_be_described(coordinator: StartCoordinator) -> None:
    started = coordinator()
    with consuming(started):
        started.add_fault(Fault("error", api="DescribeGroups", error="GROUP_AUTHORIZATION_FAILED"))
        found = answered(AdminPolls(started.address))
    assert found.unanswered["billing"].kind == "refused"
    assert "authorization failed" in found.unanswered["billing"].text.lower()


def test_no_broker_is_a_missed_poll() -> None:
    found = AdminPolls(NOBODY, patience_s=1).poll()
    assert isinstance(found, Missed)
    assert "refused" in found.text.lower()


def test_a_wrong_password_is_final(coordinator: StartCoordinator) -> None:
    started = coordinator(users=Users({"alice": "right"}))
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    assert answered(AdminPolls(started.address, login | {"sasl.password": "right"})).groups == {}
    with pytest.raises(WatchError, match=r"refuses the login.*check the security settings"):
        AdminPolls(started.address, login | {"sasl.password": "wrong"}).poll()


def test_settings_that_librdkafka_rejects() -> None:
    with pytest.raises(WatchError, match="rejects these settings"):
        AdminPolls("127.0.0.1:1", {"no.such.setting": "1"})


def test_stopping_interrupts_a_poll() -> None:
    polls = AdminPolls(NOBODY, patience_s=60)
    threading.Timer(0.3, polls.stop).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        polls.poll()
    assert time.monotonic() - began < 30
