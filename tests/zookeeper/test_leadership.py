"""Leadership: the requests of an election, the lease, and what ends a term."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from kcoord_wire.zookeeper.layout import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH
from kcoord_wire.zookeeper.leadership import LeaderRecord, Leadership, is_fenced_off, parse_leader
from kcoord_wire.zookeeper.requests import (
    Ask,
    Check,
    Create,
    Delete,
    Fired,
    Multi,
    Node,
    Outcome,
    Read,
    RegistryError,
    Replied,
    SessionChanged,
    SessionState,
    SetData,
)

CONNECTED = SessionChanged(SessionState.CONNECTED, session_id=7, timeout_ms=9_000)
SUSPENDED = SessionChanged(SessionState.SUSPENDED)
OURS = b'{"broker": 1, "epoch": 4}'
THEIRS = b'{"broker": 2, "epoch": 4}'


class Candidate:
    """A leadership whose requests the test answers one by one."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.heard: list[Any] = []
        self.leadership = Leadership(
            1,
            COORDINATOR,
            COORDINATOR_EPOCH,
            self.asks.append,
            count(1),
            lambda epoch: self.heard.append(epoch),
            lambda reason: self.heard.append(reason),
            lambda text: self.heard.append(("failed", text)),
        )

    def answer(
        self, expected: Any, now: int, outcome: Outcome = Outcome.OK, value: Any = None, failed: int = -1
    ) -> None:
        ask = self.asks.pop(0)
        assert ask.request == expected
        self.leadership.handle(Replied(ask.token, outcome, value, failed), now)

    def connect(self, now: int = 0, event: SessionChanged = CONNECTED) -> None:
        self.asks.clear()
        self.leadership.handle(event, now)
        for path, data in ((CONSUMERS, b""), (COORDINATOR_EPOCH, b"0")):
            self.answer(Create(path, data), now, Outcome.NODE_EXISTS)

    def see(self, leader: Node | None, epoch: int = 4, version: int = 11, now: int = 0) -> None:
        self.answer(Read(COORDINATOR_EPOCH), now, value=Node(b"%d" % epoch, version))
        self.answer(Read(COORDINATOR, watch=True), now, value=leader)

    def win(self, now: int = 0) -> None:
        self.connect(now)
        self.see(None, now=now)
        self.answer(elect(5, 11), now)
        assert self.heard.pop() == 5


def elect(epoch: int, version: int, *replaced: Delete) -> Multi:
    record = b'{"broker": 1, "epoch": %d}' % epoch
    create = Create(COORDINATOR, record, is_ephemeral=True)
    return Multi((*replaced, create, SetData(COORDINATOR_EPOCH, b"%d" % epoch, version)))


def test_the_node_and_the_epoch_change_together() -> None:
    candidate = Candidate()
    candidate.win()
    assert candidate.leadership.epoch == 5
    assert candidate.leadership.guarded(Delete("/a")) == Multi((Check(COORDINATOR_EPOCH, 12), Delete("/a")))


def test_who_is_barred_gives_its_node_up() -> None:
    """Else no other could be elected until its session ends. The node of another session is not its own."""
    candidate = Candidate()
    candidate.win()
    candidate.leadership.bar("its turn is over")
    assert candidate.heard == ["its turn is over"]
    for path, data in ((CONSUMERS, b""), (COORDINATOR_EPOCH, b"0")):
        candidate.answer(Create(path, data), 0, Outcome.NODE_EXISTS)
    candidate.see(Node(OURS, 0, 7), epoch=5)
    candidate.answer(Delete(COORDINATOR, 0), 0)
    for now, leader in ((500, Node(OURS, 0, 6)), (1_000, None)):
        assert candidate.asks == []
        candidate.leadership.handle(None, now)
        candidate.see(leader, epoch=5, now=now)
    candidate.leadership.bar("")
    candidate.leadership.handle(None, 1_500)
    candidate.see(None, epoch=5, now=1_500)
    candidate.answer(elect(6, 11), 1_500)
    assert candidate.leadership.epoch == 6


def test_another_leader_is_watched_until_its_node_is_deleted() -> None:
    candidate = Candidate()
    candidate.connect()
    candidate.see(Node(THEIRS, 0, 3))
    assert candidate.leadership.leader == LeaderRecord(2, 4)
    assert candidate.asks == []
    candidate.leadership.handle(Fired(COORDINATOR), 100)
    candidate.see(None, now=100)
    candidate.answer(elect(5, 11), 100)
    assert (candidate.heard, candidate.leadership.leader) == ([5], None)


@pytest.mark.parametrize("owner", [7, 6], ids=["a create that timed out but landed", "a former session"])
def test_an_own_node_is_replaced_with_a_new_epoch(owner: int) -> None:
    candidate = Candidate()
    candidate.connect()
    candidate.see(Node(OURS, 0, owner))
    candidate.answer(elect(5, 11, Delete(COORDINATOR, 0)), 0)
    assert candidate.heard == [5]


@pytest.mark.parametrize("outcome", [Outcome.NODE_EXISTS, Outcome.BAD_VERSION, Outcome.NO_NODE])
def test_the_loser_of_an_election_reads_again(outcome: Outcome) -> None:
    candidate = Candidate()
    candidate.connect()
    candidate.see(None)
    candidate.answer(elect(5, 11), 0, outcome, failed=0)
    candidate.see(Node(THEIRS, 0, 3), epoch=5)
    assert candidate.heard == []


def test_the_lease_counts_from_when_the_renewal_was_sent() -> None:
    candidate = Candidate()
    candidate.win(now=0)
    assert candidate.leadership.deadline == 1_000
    candidate.leadership.handle(None, 1_000)
    candidate.answer(candidate.leadership.guarded(Check(COORDINATOR, 0)), 2_900)
    candidate.leadership.handle(None, 3_999)
    assert (candidate.heard, candidate.leadership.lease_until) == ([], 4_000)


def test_slow_answers_keep_the_lease() -> None:
    candidate = Candidate()
    candidate.win(now=0)
    for now in range(100, 20_000, 100):
        candidate.leadership.handle(None, now)
        if now >= 2_900 and now % 1_000 == 900:
            candidate.answer(candidate.leadership.guarded(Check(COORDINATOR, 0)), now)
    assert (candidate.heard, candidate.leadership.lease_until) == ([], 21_000)


def test_a_paused_leader_resigns_before_it_acts() -> None:
    candidate = Candidate()
    candidate.win(now=0)
    candidate.leadership.handle(None, 1_000)
    renewal = candidate.asks.pop()
    candidate.leadership.handle(Replied(renewal.token), 3_000)
    assert candidate.heard == ["lease expired"]
    assert candidate.leadership.epoch is None
    assert candidate.asks[0].request == Create(CONSUMERS)


def test_an_election_whose_answer_is_late_is_held_again() -> None:
    candidate = Candidate()
    candidate.connect()
    candidate.see(None)
    candidate.answer(elect(5, 11), 3_000)
    candidate.see(Node(OURS.replace(b"4", b"5"), 0, 7), epoch=5, version=12, now=3_000)
    candidate.answer(elect(6, 12, Delete(COORDINATOR, 0)), 3_000)
    assert candidate.heard == [6]


@pytest.mark.parametrize("data", [b"junk", b"", b"-1", b"\xb2", b"1" * 5_000])
def test_an_epoch_that_is_no_number_is_reported_with_its_node(data: bytes) -> None:
    candidate = Candidate()
    candidate.connect()
    candidate.answer(Read(COORDINATOR_EPOCH), 0, value=Node(data, 11))
    candidate.answer(Read(COORDINATOR, watch=True), 0)
    [(what, text)] = candidate.heard
    assert (what, text.split(": ")[:2]) == ("failed", [COORDINATOR_EPOCH, "not a number of elections"])
    assert candidate.leadership.epoch is None


def test_a_leader_that_was_replaced_learns_it_from_its_renewal() -> None:
    candidate = Candidate()
    candidate.win(now=0)
    candidate.leadership.handle(None, 1_000)
    renewal = candidate.leadership.guarded(Check(COORDINATOR, 0))
    candidate.answer(renewal, 1_001, Outcome.BAD_VERSION, failed=0)
    assert candidate.leadership.epoch is None
    assert "bad version" in candidate.heard[0]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (SUSPENDED, "session suspended"),
        (SessionChanged(SessionState.EXPIRED), "session expired"),
        (SessionChanged(SessionState.CONNECTED, 8, 9_000), "new session"),
    ],
)
def test_the_end_of_a_connection_ends_the_term(event: SessionChanged, reason: str) -> None:
    candidate = Candidate()
    candidate.win()
    candidate.leadership.handle(event, 10)
    assert candidate.heard == [reason]


def test_the_same_session_connected_again_has_a_new_term() -> None:
    candidate = Candidate()
    candidate.win()
    candidate.leadership.handle(SUSPENDED, 10)
    candidate.connect(20)
    candidate.see(Node(OURS.replace(b"4", b"5"), 0, 7), epoch=5, version=12, now=20)
    candidate.answer(elect(6, 12, Delete(COORDINATOR, 0)), 20)
    assert candidate.heard == ["session suspended", 6]


def test_a_request_that_is_refused_is_tried_again_later() -> None:
    candidate = Candidate()
    candidate.leadership.handle(CONNECTED, 0)
    candidate.answer(Create(CONSUMERS), 0, Outcome.NO_AUTH)
    assert (candidate.asks, candidate.leadership.deadline) == ([], 500)
    candidate.leadership.handle(None, 500)
    assert candidate.asks[0].request == Create(CONSUMERS)
    assert candidate.heard[0][0] == "failed"


def test_a_fenced_write_is_recognised() -> None:
    request = Multi((Check("/e", 1), Delete("/a")))
    assert is_fenced_off(RegistryError(request, Replied(1, Outcome.BAD_VERSION, failed=0)))
    assert not is_fenced_off(RegistryError(request, Replied(1, Outcome.BAD_VERSION, failed=1)))


@pytest.mark.parametrize("data", [b"1", b"{}", b"[]", b"", b'{"broker": "1"}'])
def test_an_unreadable_leader_record_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"record|Expecting"):
        parse_leader(data)
