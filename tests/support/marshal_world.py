"""Coordination logs for tests of the world state: messages in short, random ones, and a world that takes them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import hypothesis.strategies as st

from kcoord_wire.marshal.world_state import Claim, Entry, Outcome, Place, Rules, WorldState
from kcoord_wire.messages import marshal as m

GROUP, TOPIC = "g", "t"
INTERVAL_MS = 60_000


def say(cls: type[Any], who: str, time: int = 0, topic: str = TOPIC, partition: int = 0, **fields: Any) -> Any:
    """A message of an instance like ``a1``, whose client is ``a``."""
    ids = {"instance_id": who, "client_id": who[:1], "group_id": GROUP}
    return cls(time=time, topic=topic, partition=partition, **ids, **fields)


def claim(who: str, partition: int = 0, time: int = 0) -> m.ClaimingPartition:
    """ClaimingPartition."""
    return say(m.ClaimingPartition, who, time, partition=partition)


def beat(who: str, offset: int = 0, partition: int = 0, time: int = 0) -> m.Heartbeat:
    """Heartbeat."""
    return say(m.Heartbeat, who, time, partition=partition, current_offset=offset)


def free(who: str, offset: int = 0, partition: int = 0, time: int = 0) -> m.ReleasingPartition:
    """ReleasingPartition."""
    return say(m.ReleasingPartition, who, time, partition=partition, current_offset=offset)


def propose(who: str, offset: int, partition: int = 0) -> m.ClaimingMessages:
    """ClaimingMessages."""
    return say(m.ClaimingMessages, who, partition=partition, proposed_current_offset=offset)


def pause(until: int, time: int = 0) -> m.ReleaseGroup:
    """ReleaseGroup of an admin."""
    return say(m.ReleaseGroup, "x1", time, topic="", msg_expire_time=until)


def identify(who: str, topic_id: str, offset: int = -1, time: int = 0) -> m.IdentifyingTopic:
    """IdentifyingTopic."""
    return say(m.IdentifyingTopic, who, time, topic_id=topic_id, current_offset=offset)


def hand_over(who: str, to: str, seconds: int, partition: int = 0) -> m.HandingOver:
    """HandingOver whose deadline is so many seconds away."""
    return say(m.HandingOver, who, 7, partition=partition, to_instance_id=to, deadline=7 + seconds)


def presence(who: str, max_claims: int = 3) -> m.Presence:
    """Presence."""
    return say(m.Presence, who, max_claims=max_claims)


class World:
    """A world state of one coordination partition, whose log is given message by message.

    :ivar now: log time of the last entry, ms
    """

    def __init__(self, rules: Rules = Rules.DOCUMENT, first_offset: int = 0) -> None:
        self.state = WorldState(rules, INTERVAL_MS // 1000, partitions=1)
        self.now = 1_000_000
        self._offset = first_offset

    def tell(self, message: Any, after: float = 0) -> Outcome:
        """Append a message, so many intervals after the one before."""
        self.now += round(after * INTERVAL_MS)
        entry = Entry(0, self._offset, self.now, True, message)
        self._offset += 1
        return self.state.apply(entry, self.now // 1000)

    def claim(self, partition: int = 0) -> Claim:
        """The claim of a partition."""
        return self.state.claims[Place(GROUP, TOPIC, partition)]

    def holder(self, partition: int = 0) -> str | None:
        """The instance whose claim is live at the end of the log."""
        claim = self.state.claims.get(Place(GROUP, TOPIC, partition))
        return claim.instance_id if claim is not None and self.state.is_claimed(claim, self.now) else None


def entries(messages: Iterable[tuple[int, Any]], partition: int = 0) -> list[Entry]:
    """Entries of pairs of log time and message."""
    return [Entry(partition, offset, time_ms, True, message) for offset, (time_ms, message) in enumerate(messages)]


_INSTANCES = st.sampled_from(["a1", "a2", "b1", "c1"])
_PLACES = st.integers(0, 1)
_OFFSETS = st.integers(0, 5)


def _messages() -> st.SearchStrategy[Any]:
    """Messages of members that may have lost their minds; also words that are none."""
    return st.one_of(
        st.builds(claim, _INSTANCES, _PLACES, st.integers(-5, 5)),
        st.builds(beat, _INSTANCES, _OFFSETS, _PLACES, st.integers(-5, 5)),
        st.builds(free, _INSTANCES, _OFFSETS, _PLACES, st.integers(-5, 5)),
        st.builds(propose, _INSTANCES, _OFFSETS, _PLACES),
        st.builds(pause, _OFFSETS),
        st.builds(hand_over, _INSTANCES, _INSTANCES, st.just(100), _PLACES),
        st.builds(presence, _INSTANCES, _OFFSETS),
        st.just("no message"),
    )


def histories(back_ms: int = INTERVAL_MS) -> st.SearchStrategy[list[Entry]]:
    """Logs of one coordination partition whose time goes on by steps, and back by `back_ms` at most."""
    step = st.one_of(
        st.sampled_from([0, 1, 20_000, INTERVAL_MS - 1, INTERVAL_MS, 2 * INTERVAL_MS, 2 * INTERVAL_MS + 1]),
        st.integers(0, 4 * INTERVAL_MS),
    )

    def timed(steps: list[tuple[int, int, Any]]) -> list[Entry]:
        now, made = 1_000_000, []
        for after, back, message in steps:
            now += after
            made.append((now - min(back, back_ms), message))
        return entries(made)

    return st.lists(st.tuples(step, st.sampled_from([0, 0, 0, 1, back_ms]), _messages()), max_size=60).map(timed)


_STEPS_MS = (0, 1, 30_000, INTERVAL_MS, 2 * INTERVAL_MS - 1, 2 * INTERVAL_MS, 2 * INTERVAL_MS + 1)


def random_log(random: Random, back_ms: int, length: int = 16) -> list[Entry]:
    """A log about one place, with few instances and steps near the limits: rarer cases in fewer entries."""
    made, now = [], 1_000_000
    for _ in range(length):
        now += random.choice(_STEPS_MS)
        who, kind = random.choice(["a1", "a2", "b1", "c1"]), random.random()
        message: Any = "no message"
        if kind < 0.45:
            message = beat(who, random.randrange(9), time=now // 1000 - random.choice([0, 0, 0, 30]))
        elif kind < 0.8:
            message = claim(who, time=now // 1000)
        elif kind < 0.95:
            message = free(who, random.randrange(9), time=now // 1000 - random.choice([0, 0, 30]))
        made.append((now - random.choice([0, 0, back_ms]), message))
    return entries(made)
