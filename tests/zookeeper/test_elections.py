"""Elections between several candidates, over the registry in memory and over clients of a real server.

What a single candidate does at each event is in test_leadership.py.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from kcoord_wire.kernel.machines import Tick
from kcoord_wire.zookeeper.layout import COORDINATOR, COORDINATOR_EPOCH
from kcoord_wire.zookeeper.leadership import LeaderRecord, Leadership, parse_leader
from kcoord_wire.zookeeper.requests import Ask, Create, Multi, Outcome, Read, Replied, SetData
from tests.support.processes import Process
from tests.support.zookeeper import Driver, RealDriver

SESSION_MS = 3_000


class Candidate:
    """A broker that wants to lead, on a client of its own.

    :ivar terms: (epoch, elected at, resigned at or None)
    :ivar reasons: why it has resigned, each time
    :ivar before_election: called once, before it sends what elects it
    """

    def __init__(self, driver: Driver, broker_id: int) -> None:
        self.client = driver.connect(session_timeout_ms=SESSION_MS)
        self.terms: list[tuple[int, int, int | None]] = []
        self.reasons: list[str] = []
        self.replies: dict[int, Replied] = {}
        self.before_election: Callable[[], None] | None = None
        self._driver = driver
        self._tokens = itertools.count(1_000_000)
        self.leadership = Leadership(
            broker_id, COORDINATOR, COORDINATOR_EPOCH, self.ask, self._tokens, self.elected,
            self.resigned, lambda text: None,
        )  # fmt: skip
        self.handle(self.client.connected)

    def ask(self, ask: Ask) -> None:
        if self.before_election is not None and isinstance(ask.request, Multi):
            self.before_election()
            self.before_election = None
        self.client.registry.ask(ask)

    def elected(self, epoch: int) -> None:
        self.terms.append((epoch, self._driver.now, None))

    def resigned(self, reason: str) -> None:
        self.reasons.append(reason)
        epoch, elected_at, _ = self.terms[-1]
        self.terms[-1] = (epoch, elected_at, self._driver.now)

    def handle(self, event: Any) -> None:
        if isinstance(event, Replied):
            self.replies[event.token] = event
        self.leadership.handle(event, self._driver.now)

    def pump(self) -> None:
        """Handle what has come, and what is due."""
        while self.client.seen:
            self.handle(self.client.seen.pop(0))
        deadline = self.leadership.deadline
        if deadline is not None and deadline <= self._driver.now:
            self.handle(Tick())

    def write(self, path: str) -> int:
        """Ask for a guarded write; return its token."""
        token = next(self._tokens)
        self.client.registry.ask(Ask(token, self.leadership.guarded(Create(path))))
        return token


def run(driver: Driver, holds: Any, *candidates: Candidate) -> None:
    def step() -> bool:
        for candidate in candidates:
            candidate.pump()
        return bool(holds())

    driver.until(step)


def leads(candidate: Candidate) -> Any:
    return lambda: candidate.leadership.epoch is not None


def test_one_of_three_leads_and_the_others_know_it(each_driver: Driver) -> None:
    candidates = [Candidate(each_driver, broker_id) for broker_id in (1, 2, 3)]
    run(each_driver, lambda: sum(c.leadership.leader is not None for c in candidates) == 2, *candidates)
    [leader] = [candidate for candidate in candidates if candidate.leadership.epoch is not None]
    others = {c.leadership.leader for c in candidates if c is not leader}
    assert others == {LeaderRecord(leader.leadership.broker_id, 1)}


def test_an_expired_leader_is_replaced_and_cannot_write(each_driver: Driver) -> None:
    first = Candidate(each_driver, 1)
    run(each_driver, leads(first), first)
    second = Candidate(each_driver, 2)
    run(each_driver, lambda: second.leadership.leader == LeaderRecord(1, 1), first, second)
    each_driver.expire(first.client)
    run(each_driver, leads(second), second)
    late = first.write("/late")  # a paused process: it has not taken in what came meanwhile
    run(each_driver, lambda: first.leadership.leader == LeaderRecord(2, 2), first, second)
    assert first.replies[late].outcome in (Outcome.CONNECTION_LOSS, Outcome.SESSION_EXPIRED, Outcome.BAD_VERSION)
    assert [epoch for epoch, _, _ in first.terms + second.terms] == [1, 2]
    assert second.client.ask(Read("/late")).value is None
    second.pump()


def test_a_leader_on_a_session_that_lives_cannot_write_either(each_driver: Driver) -> None:
    """Its session is fine, but another has been elected: only the epoch's version refuses the write."""
    first = Candidate(each_driver, 1)
    run(each_driver, leads(first), first)
    twin = Candidate(each_driver, 1)  # the same broker, started again while its former process is paused
    run(each_driver, leads(twin), twin)
    late = first.write("/late")
    run(each_driver, lambda: late in first.replies, first, twin)
    refused = first.replies[late]
    assert (refused.outcome, refused.failed) == (Outcome.BAD_VERSION, 0)
    assert twin.terms[0][0] == 2
    assert twin.write("/mine")


def test_a_leader_that_is_cut_off_resigns_before_the_next(each_driver: Driver) -> None:
    first = Candidate(each_driver, 1)
    run(each_driver, leads(first), first)
    second = Candidate(each_driver, 2)
    each_driver.cut(first.client)
    run(each_driver, leads(second), first, second)
    [(_, _, resigned_at)] = first.terms
    assert resigned_at is not None
    assert resigned_at < second.terms[0][1]
    each_driver.heal(first.client)
    run(each_driver, lambda: first.leadership.leader == LeaderRecord(2, 2), first, second)


def test_a_leader_without_answers_resigns_at_its_lease(each_driver: Driver) -> None:
    """CURATOR-460: kazoo reports SUSPENDED after two thirds of the session; the lease is a third."""
    first = Candidate(each_driver, 1)
    run(each_driver, leads(first), first)
    second = Candidate(each_driver, 2)
    run(each_driver, lambda: second.leadership.leader is not None, first, second)
    each_driver.hold(first.client)
    run(each_driver, lambda: first.terms[0][2] is not None, first, second)
    assert first.reasons == ["lease expired"]
    run(each_driver, leads(second), first, second)
    resigned_at = first.terms[0][2]
    assert resigned_at is not None
    assert resigned_at <= second.terms[0][1]
    each_driver.heal(first.client)
    run(each_driver, lambda: first.leadership.leader == LeaderRecord(2, 2), first, second)


def test_an_election_whose_answer_is_lost_is_held_again(real_driver: RealDriver) -> None:
    candidate = Candidate(real_driver, 1)
    proxy = candidate.client.proxy
    assert proxy is not None
    candidate.before_election = proxy.swallow_answers
    other = real_driver.connect()
    while other.ask(Read(COORDINATOR)).value is None:
        candidate.pump()
    assert candidate.terms == []
    real_driver.cut(candidate.client)
    real_driver.heal(candidate.client)
    run(real_driver, leads(candidate), candidate)
    assert [epoch for epoch, _, _ in candidate.terms] == [2], "epoch 1 landed, and no leader acted in it"
    node = other.ask(Read(COORDINATOR)).value
    assert (node.ephemeral_owner, parse_leader(node.data).epoch) == (candidate.client.connected.session_id, 2)


def test_a_leader_stopped_beyond_its_session_cannot_write(real_driver: RealDriver) -> None:
    """Curator's Tech Note 10: after SIGCONT it acts before it reads its socket, and then with another session."""
    witness = real_driver.connect()
    witness.ask(Create("/owner", b"nobody"))
    command = [
        sys.executable,
        "-m",
        "tests.support.stubborn_leader",
        real_driver.address,
        "1",
        str(SESSION_MS),
        "/owner",
    ]
    with Process(command) as process:
        assert process.line() == "elected 1"
        assert process.line() == "ok"
        process.stop()
        second = Candidate(real_driver, 2)
        run(real_driver, leads(second), second)
        second.client.ask(second.leadership.guarded(SetData("/owner", b"the new leader's")))
        process.go_on()
        outcomes: list[str] = []
        while outcomes.count("bad version") < 20:
            outcomes.append(process.line())
    answered_before = outcomes.index(next(outcome for outcome in outcomes if outcome != "ok"))
    assert "ok" not in outcomes[answered_before:]
    assert witness.ask(Read("/owner")).value.data == b"the new leader's"
