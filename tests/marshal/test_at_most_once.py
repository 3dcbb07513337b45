"""The nine steps of at-most-once consumption, with each failure at each step, over a log in which appends land late or
twice. First with the smallest members that follow the document's steps of claiming and fence themselves; then with
whole ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator
from typing import Any

import pytest

from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.procedures import Procedures
from kcoord_wire.marshal.holding import RETRY_MS, AtMostOnce
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.member_events import (
    Append,
    Deliver,
    Delivery,
    Fetched,
    LossReason,
    ReadToEnd,
    Release,
    StartFetching,
    StartFound,
    StopFetching,
    Tenure,
)
from kcoord_wire.marshal.world_state import Claim, Entry, Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingMessages, ClaimingPartition, Heartbeat, ReleasingPartition
from tests.support.marshal_script import LOST, Fate, MarshalScript, ScriptedMember

INTERVAL_MS = 10_000
STALE_MS = 2 * INTERVAL_MS + 1
PLACE = Place("g", "t", 0)
RESULTS = ("ok", "refused", "landed, no answer", "lands later", "twice", "again later")


class _Log:
    """One coordination partition whose appends end as the test says."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.late: list[Any] = []
        self.now = 1_000_000

    def land(self, message: Any) -> int:
        offset = len(self.entries)
        self.entries.append(Entry(0, offset, self.now, True, message))
        return offset

    def append(self, message: Any, result: str) -> Appended | AppendFailed:
        if result in ("ok", "twice", "again later"):
            offset = self.land(message)
            if result == "twice":
                self.land(message)
            elif result == "again later":
                self.late.append(message)
            return Appended(0, offset)
        if result == "landed, no answer":
            self.land(message)
        elif result == "lands later":
            self.late.append(message)
        return AppendFailed(0, result, may_have_landed=result != "refused")


class _Member:
    """A member with one partition: what it asks waits in `asked` until the test answers."""

    coordination_partition = 0

    def __init__(self, log: _Log, name: str) -> None:
        self.log = log
        self.name = name
        self.world = WorldState(Rules.DOCUMENT, INTERVAL_MS // 1000)
        self.read = 0
        self.asked: list[tuple[int, Any]] = []
        self.procedures = Procedures(lambda token, request: self.asked.append((token, request)))
        self.tenure = Tenure("t", 0, -1)
        self.fence = -1
        self.position = 0
        self.delivered: list[tuple[int, int]] = []
        self.given_up: list[str] = []
        self.batches = AtMostOnce(self, self.position, self.start)

    # ---- what the procedure sees

    def claim(self) -> Claim | None:
        claim = self.world.claims.get(PLACE)
        is_held = claim is not None and (claim.instance_id, claim.token) == (self.name, self.tenure.token)
        return claim if is_held and claim is not None and claim.last_heartbeat and self.log.now < self.fence else None

    def message(self, kind: type, **tail: Any) -> Any:
        seconds = self.log.now // 1000
        return kind(
            time=seconds, instance_id=self.name, client_id=self.name, group_id="g", topic="t", partition=0, **tail
        )

    def heartbeat(self, offset: int) -> Generator[Any, Any, Appended | AppendFailed]:
        sent = self.log.now
        answer: Appended | AppendFailed = yield Append(0, self.message(Heartbeat, current_offset=offset))
        if isinstance(answer, Appended):
            self.fence = max(self.fence, sent + INTERVAL_MS)
        return answer

    def deliver(self, end: int) -> None:
        assert self.world.claims[PLACE].current_offset >= end
        self.delivered.append((self.position, end))
        self.position = end

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)
        self.tenure = Tenure("t", 0, -1)

    # ---- what the test does

    def start(self, procedure: Any) -> None:
        self.procedures.start(procedure, self.log.now)

    def read_to_end(self) -> None:
        for entry in self.log.entries[self.read :]:
            self.world.apply(entry, 0)
        self.read = len(self.log.entries)

    def take(self, claimed: str = "ok") -> bool:
        """Claim the partition if it is free, by the document's steps; every step happens at once."""
        self.read_to_end()
        claim = self.world.claims.get(PLACE)
        if claim is not None and self.world.is_claimed(claim, self.log.now):
            return False
        sent = self.log.now
        self.log.append(self.message(ClaimingPartition), claimed)
        self.read_to_end()
        claim = self.world.claims.get(PLACE)
        if claim is None or claim.instance_id != self.name or not claim.last_heartbeat:
            return False
        self.tenure = Tenure("t", 0, claim.token)
        self.fence = sent + INTERVAL_MS
        self.position = claim.current_offset
        self.batches = AtMostOnce(self, self.position, self.start)
        return True

    def fetch(self, records: int = 3) -> None:
        self.batches.fetched(Fetched(self.tenure, self.position, self.position + records))

    def step(self, result: str = "ok") -> Any:
        """Answer the oldest request; return it."""
        token, request = self.asked.pop(0)
        if isinstance(request, ReadToEnd):
            self.read_to_end()
        answer = self.log.append(request.message, result) if isinstance(request, Append) else None
        self.procedures.answered(token, answer, self.log.now)
        return request

    def settle(self) -> None:
        """Let every step succeed until nothing is asked any more."""
        for _ in range(100):
            while self.asked:
                self.step()
            if not self.procedures.deadline:
                return
            self.log.now = max(self.log.now, self.procedures.deadline)
            self.procedures.advance(self.log.now)
        raise AssertionError("the procedure does not end")

    def stop(self, *, release: bool) -> None:
        self.procedures.cancel_all()
        self.asked.clear()
        if release:
            self.log.land(self.message(ReleasingPartition, current_offset=self.position))
        self.tenure = Tenure("t", 0, -1)


def _holder() -> _Member:
    member = _Member(_Log(), "a")
    assert member.take()
    return member


def _twice(members: list[_Member]) -> list[int]:
    delivered = [offset for member in members for begin, end in member.delivered for offset in range(begin, end)]
    return sorted(offset for offset in set(delivered) if delivered.count(offset) > 1)


def _kinds(log: _Log) -> list[str]:
    return [type(entry.message).__name__ for entry in log.entries]


def test_step_1_without_the_claim_nothing_is_proposed() -> None:
    member = _holder()
    member.log.now += INTERVAL_MS  # the own fence
    member.fetch()
    assert member.asked == []
    assert member.delivered == []


def test_steps_2_and_3_batches_are_committed_one_after_the_other() -> None:
    member = _holder()
    member.fetch()
    member.batches.fetched(Fetched(member.tenure, 3, 5))
    assert len(member.asked) == 1
    member.settle()
    assert member.delivered == [(0, 3), (3, 5)]


def test_step_4_proposes_the_end_of_the_batch() -> None:
    member = _holder()
    member.fetch()
    request = member.step()
    assert isinstance(request.message, ClaimingMessages)
    assert request.message.proposed_current_offset == 3


@pytest.mark.parametrize("result", ["refused", "landed, no answer"])
def test_step_4_is_in_the_log_once(result: str) -> None:
    member = _holder()
    member.fetch()
    member.step(result)
    member.settle()
    assert _kinds(member.log) == ["ClaimingPartition", "ClaimingMessages", "Heartbeat"]
    assert member.delivered == [(0, 3)]


def test_step_5_reads_to_the_end_before_the_claim_is_judged() -> None:
    member = _holder()
    member.fetch()
    member.step()
    assert isinstance(member.asked[0][1], ReadToEnd)


def _taken_from(member: _Member) -> _Member:
    """Let another member claim the partition, once the claim is stale."""
    member.log.now += STALE_MS
    other = _Member(member.log, "b")
    assert other.take()
    return other


@pytest.mark.parametrize(
    ("steps", "fetched"),
    [
        pytest.param(0, (0, 3), id="step 6: the batch was not committed, so the next holder fetches it"),
        pytest.param(2, (0, 3), id="step 8 lands after the loss, and commits nothing"),
        pytest.param(3, (3, 6), id="step 9: a batch that was committed and then lost is dropped"),
    ],
)
def test_a_claim_that_is_lost_delivers_nothing(steps: int, fetched: tuple[int, int]) -> None:
    member = _holder()
    member.fetch()
    for _ in range(steps):
        member.step()
    other = _taken_from(member)
    member.settle()
    assert ("Heartbeat" in _kinds(member.log)) is (steps > 0)
    other.fetch()
    other.settle()
    assert (member.delivered, other.delivered) == ([], [fetched])


def test_step_7_without_our_proposal_nothing_is_committed() -> None:
    member = _holder()
    member.fetch()
    member.step("lands later")
    member.step()  # it is not in the log
    assert member.asked == []
    assert "Heartbeat" not in _kinds(member.log)


def test_step_7_a_proposal_of_an_earlier_batch_does_not_count() -> None:
    member = _holder()
    member.fetch()
    member.step("again later")
    member.settle()
    member.fetch()
    member.step("lands later")
    member.log.land(member.log.late.pop(0))  # that of the first batch, again
    member.step()
    assert member.asked == []


@pytest.mark.parametrize("result", RESULTS)
def test_step_8_is_repeated_until_the_commit_is_read_back(result: str) -> None:
    member = _holder()
    member.fetch()
    member.step()
    member.step()
    assert isinstance(member.step(result).message, Heartbeat)
    assert member.delivered == []
    member.settle()
    assert member.delivered == [(0, 3)]


def test_step_8_that_lands_while_it_is_repeated_counts() -> None:
    member = _holder()
    member.fetch()
    for result in ("ok", "ok", "lands later", "ok"):
        member.step(result)
    member.log.land(member.log.late.pop())
    member.settle()
    assert (member.delivered, member.given_up) == ([(0, 3)], [])


def test_batch_below_what_is_committed_is_never_delivered() -> None:
    first = _holder()
    first.fetch()
    first.settle()
    other = _taken_from(first)
    other.batches.fetched(Fetched(other.tenure, 2, 5))
    assert other.asked == []
    assert other.given_up == ["the batch starts at offset 2, and 3 is committed"]


def test_no_record_twice_for_each_failure_at_each_step() -> None:
    # Of a batch: how both appends end, after how many steps the member stops, how; then, where late appends land.
    runs = 0
    for proposed, committed, steps, end, landing in itertools.product(
        RESULTS, RESULTS, range(5), ("stale", "released", "continued"), range(3)
    ):
        log = _Log()
        member, other = _Member(log, "a"), _Member(log, "b")
        assert member.take()
        member.fetch()
        results = iter((proposed, committed))
        for _ in range(steps):
            if member.asked:
                member.step(next(results, "ok") if isinstance(member.asked[0][1], Append) else "ok")
        late, log.late = log.late, []
        for place, holder in enumerate((other, member, other)):
            if place == 0 and end != "stale":
                member.settle()
                if end == "released":
                    member.stop(release=True)
            if place == landing:
                for message in late:
                    log.land(message)
            log.now += STALE_MS
            if holder.take():
                holder.fetch()
                holder.settle()
            member.settle()
        assert not _twice([member, other]), (proposed, committed, steps, end, landing)
        runs += 1
    assert runs == 6 * 6 * 5 * 3 * 3


def _play(seed: int) -> list[_Member]:
    """Two members, and events in an order that the seed decides."""
    draw = random.Random(seed)
    log = _Log()
    members = [_Member(log, "a"), _Member(log, "b")]
    for _ in range(150):
        member = draw.choice(members)
        match draw.choices(("step", "fetch", "take", "pass", "land", "stop"), (16, 6, 2, 2, 1, 1))[0]:
            case "step" if member.asked:
                member.step(draw.choice(("ok", "ok", "ok", *RESULTS)))
            case "fetch" if member.tenure.token >= 0 and not member.asked:
                member.fetch(draw.randint(1, 3))
            case "take":
                member.take(draw.choice(RESULTS))
            case "pass":
                log.now += draw.choice((RETRY_MS, RETRY_MS, RETRY_MS, INTERVAL_MS // 2, STALE_MS))
                for one in members:
                    one.procedures.advance(log.now)
            case "land" if log.late:
                log.land(log.late.pop(draw.randrange(len(log.late))))
            case "stop":
                member.stop(release=draw.random() < 0.5)
    return members


def test_no_record_twice_whatever_the_order_of_events() -> None:
    batches = 0
    for seed in range(1_000):
        members = _play(seed)
        assert not _twice(members), seed
        batches += sum(len(member.delivered) for member in members)
    assert batches > 1_000


# ---- whole members


class _Consumers:
    """Members at most once in virtual time, and what each of their applications got."""

    def __init__(self, **settings: Any) -> None:
        self.world = MarshalScript({"orders": 1}, delivery=Delivery.AT_MOST_ONCE, **settings)
        self.got: list[tuple[str, int, int]] = []
        self._seen: dict[str, int] = {}
        self._fetched: dict[tuple[str, Tenure], int] = {}

    def fetch(self, member: ScriptedMember, records: int) -> None:
        """Fetch a batch of each tenure that waits for none."""
        for tenure, first in member.fetching.items():
            if (member.name, tenure) not in self._fetched:
                self._fetched[member.name, tenure] = first
                member.deliver(Fetched(tenure, first, first + records))

    def take(self, member: ScriptedMember) -> None:
        """Let the application have what was delivered."""
        delivered = member.done(Deliver)
        for effect in delivered[self._seen.get(member.name, 0) :]:
            self.got.append((member.name, self._fetched.pop((member.name, effect.tenure)), effect.end))
            if effect.tenure in member.fetching:
                member.fetching[effect.tenure] = effect.end
        self._seen[member.name] = len(delivered)

    def twice(self) -> list[int]:
        offsets = [offset for _, first, end in self.got for offset in range(first, end)]
        return sorted({offset for offset in offsets if offsets.count(offset) > 1})


def _consuming(**settings: Any) -> tuple[_Consumers, MarshalScript, ScriptedMember]:
    """A world whose first member holds its partition."""
    consumers = _Consumers(**settings)
    member = consumers.world.start("a")
    consumers.world.run(1_000)
    return consumers, consumers.world, member


def test_member_delivers_each_batch_after_its_commit() -> None:
    consumers, world, member = _consuming()
    for _ in range(3):
        consumers.fetch(member, 10)
        assert len(member.done(Deliver)) == len(consumers.got)
        world.run(100)
        consumers.take(member)
    assert consumers.got == [("a", 0, 10), ("a", 10, 20), ("a", 20, 30)]
    world.shut_down(member)
    world.run(100)
    assert world.entries(ReleasingPartition)[-1].message.current_offset == 30


def test_successor_starts_behind_a_batch_that_was_dropped() -> None:
    consumers, world, a = _consuming()
    consumers.fetch(a, 10)
    assert world.run_until(lambda: any(entry.message.current_offset == 10 for entry in world.entries(Heartbeat)), 1_000)
    a.kill()
    b = world.start("b")
    world.run(3 * INTERVAL_MS)
    assert [effect.offset for effect in b.done(StartFetching)] == [10]
    assert a.done(Deliver) == []


def test_shutdown_delivers_nothing_after_the_stop() -> None:
    consumers, world, a = _consuming()
    consumers.fetch(a, 10)
    world.run(12)  # ClaimingMessages has landed
    world.shut_down(a)
    world.run(2_000)
    assert a.done(Deliver) == []
    b = world.start("b")
    world.run(1_000)
    assert [effect.offset for effect in b.done(StartFetching)] == [0]


def test_batch_that_cannot_be_delivered_stops_the_fetch_once() -> None:
    found = iter((StartFound,))  # the second request, for the release, gets no answer before the fence
    consumers, world, a = _consuming(find_start=lambda ask: next(found, lambda *_: Tick())(ask.request, 0, 100))
    consumers.fetch(a, 10)
    world.run(100)
    (tenure,) = a.fetching
    world.fate = lambda *_: LOST
    a.deliver(Fetched(tenure, 5, 20))
    world.run(2 * INTERVAL_MS)
    assert [(effect.tenure, effect.why) for effect in a.done(StopFetching)] == [(tenure, LossReason.FETCH_FAILED)]


def _play_members(seed: int) -> _Consumers:
    """Three members, one of which follows on another of the same client; appends that fail, land late, twice."""
    draw = random.Random(seed)
    consumers = _Consumers(cooldown_ms=draw.choice((0, -1)))
    world = consumers.world
    late = (5, draw.choice((300, 6_000, 25_000)))

    def fate(_member: ScriptedMember, _message: Any) -> Fate:
        return draw.choice((Fate(), Fate(), Fate(), LOST, Fate((5,), None), Fate((late[1],), None), Fate(late)))

    world.fate = fate
    for name in "ab":
        world.start(name, wall_error_ms=draw.randint(-30_000, 30_000))
    for step in range(80):
        member = draw.choice(world.working())
        match draw.choices(("work", "pause", "kill", "release"), (40, 1, 1, 2))[0]:
            case "pause" if not member.is_paused:
                member.pause(draw.choice((4_000, 12_000, 25_000)))
            case "kill":
                member.kill()
                client = member.member.settings.client_id if draw.random() < 0.5 else f"c{step}"
                world.start(f"m{step}", client=client)
            case "release":
                member.deliver(Release("orders", 0))
        for each in list(world.members.values()):
            consumers.fetch(each, draw.randint(1, 5))
            consumers.take(each)
        world.run(draw.choice((20, 100, 500, 3_000)))
    return consumers


def test_members_deliver_no_record_twice_whatever_fails() -> None:
    batches = 0
    for seed in range(25):
        consumers = _play_members(seed)
        assert not consumers.twice(), seed
        batches += len(consumers.got)
    assert batches > 200
