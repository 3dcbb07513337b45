"""Rounds of giving, from any state, converge, stop, and leave no member empty, also where members see old states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.marshal.claiming import Give, View, plan_gives, receivers
from kcoord_wire.marshal.events import Balance
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.state import Claim, Handoff, Member, Place, Rules

NOW = 1_000_000
TOKENS = 1_000


def _view(
    holders: Sequence[str], limits: dict[str, int | None], handoffs: dict[int, str] | None = None, late_ms: int = 0
) -> View:
    """What the log shows: who holds each partition (empty for free), who has sent Presence, what is handed over."""
    state = WorldState(Rules.DOCUMENT)
    for partition, holder in enumerate(holders):
        claim = Claim(Place("g", "t", partition), holder, holder, token=partition)
        if holder:
            claim.last_heartbeat, claim.heartbeat_ms = NOW // 1000, NOW
        if handoffs and partition in handoffs:
            claim.handoff = Handoff(handoffs[partition], NOW - late_ms)
        state.claims[claim.place] = claim
    state.members["g", "t"] = {each: Member(each, each, NOW, limit) for each, limit in limits.items()}
    return View(state, "g", "t", len(holders), NOW, NOW)


def _gives(view: View, who: str, balance: Balance | None = None, giving: dict[int, str] | None = None) -> list[Give]:
    return plan_gives(view, who, balance or Balance(), giving or {})


def test_newcomer_with_nothing_is_given_the_newest() -> None:
    assert _gives(_view("aaab", {"a": 0, "b": 0, "c": 0}), "a") == [Give(2, "c")]


def test_difference_within_the_hysteresis_stays() -> None:
    view = _view("aaaabb", {"a": 0, "b": 0})
    assert _gives(view, "a") == []
    assert _gives(view, "a", Balance(hysteresis=0)) == [Give(3, "b")]


def test_one_partition_is_never_passed_on() -> None:
    assert _gives(_view("a", {"a": 0, "b": 0}), "a", Balance(hysteresis=0)) == []


def test_members_without_presence_keep_theirs_and_get_none() -> None:
    view = _view("gggggaab", {"a": 0, "b": 0, "g": None, "h": None})
    assert all(_gives(view, each) == [] for each in "abgh")


def test_max_claims_of_the_receiver_is_respected() -> None:
    assert _gives(_view("aaaaab", {"a": 0, "b": 1}), "a") == []
    assert _gives(_view("aaaaab", {"a": 0, "b": 2}), "a") == [Give(4, "b")]


def test_free_partitions_count_for_those_with_the_fewest() -> None:
    assert _gives(_view(["a", "a", "a", "", "", ""], {"a": 0, "b": 0}), "a") == []


def test_ongoing_handoffs_count_for_the_successor_and_the_limit() -> None:
    limits: dict[str, int | None] = {"a": 0, "b": 0}
    assert _gives(_view("aaaaaa", limits, {5: "b"}), "a") == []
    assert _gives(_view("aaaaaa", limits), "a", giving={5: "b"}) == []
    assert _gives(_view("aaaaaa", limits, {5: "b"}), "a", Balance(gives_per_round=2)) == [Give(4, "b")]


def test_expired_handoff_counts_for_the_holder() -> None:
    assert _gives(_view("aaaaaa", {"a": 0, "b": 0}, {5: "b"}, late_ms=1), "a") == [Give(5, "b")]


def test_silent_members_and_former_processes_are_given_nothing() -> None:
    view = _view("aaaaaa", {"a": 0, "b": 0, "b2": 0, "c": 0})
    members = view.state.members["g", "t"]
    members["b"].client_id = members["b2"].client_id = "b"
    members["b"].seen_ms -= 1
    members["c"].seen_ms -= 60_000
    assert receivers(view) == {"a": 0, "b2": 0}
    assert _gives(view, "a") == [Give(5, "b2")]


@dataclass
class _Group:
    """Members that all balance, and what each of them sees: the present, or the state of one round ago.

    A handoff that was announced in one round is done in the next.
    """

    holders: list[str]
    limits: dict[str, int | None]
    balance: Balance
    handoffs: dict[int, str] = field(default_factory=dict)
    moves: int = 0

    def round(self, seen: Sequence[tuple[list[str], dict[int, str]]]) -> int:
        """Let all plan at once; return how many partitions they begin to give."""
        present = self.present()
        done, self.handoffs = self.handoffs, {}
        planned: dict[int, str] = {}
        for who, (holders, handoffs) in zip(self.limits, seen, strict=True):
            # A member knows of itself: what it holds, and what it has announced.
            known = [now if who in (was, now) else was for was, now in zip(holders, present[0], strict=True)]
            own = {partition: to for partition, to in present[1].items() if present[0][partition] == who}
            gives = _gives(_view(known, self.limits, handoffs | own), who, self.balance, own)
            assert len(gives) + len(own) <= max(self.balance.gives_per_round, len(own))
            assert all(self.holders[give.partition] == who and give.partition not in own for give in gives)
            planned |= dict(gives)
        for partition, to in done.items():
            self.holders[partition] = to
        self.handoffs = planned
        self.moves += len(planned)
        return len(planned)

    def present(self) -> tuple[list[str], dict[int, str]]:
        """What a member sees that has read everything."""
        return self.holders.copy(), self.handoffs.copy()

    def counts(self) -> dict[str, int]:
        found = Counter(self.holders)
        return {each: found[each] for each, limit in self.limits.items() if limit is not None}


@st.composite
def _groups(draw: st.DrawFn) -> _Group:
    present = [f"p{i}" for i in range(draw(st.integers(1, 7)))]
    foreign = [f"go{i}" for i in range(draw(st.integers(0, 2)))]
    limits: dict[str, int | None] = {each: draw(st.sampled_from([0, 0, 0, 2, 5])) for each in present}
    holders = draw(st.lists(st.sampled_from(present + foreign), min_size=1, max_size=30))
    balance = Balance(draw(st.integers(0, 2)), draw(st.integers(1, 3)))
    return _Group(holders, limits | dict.fromkeys(foreign), balance)


def _check_even(group: _Group) -> None:
    counts = group.counts()
    fullest = max(counts.values())
    for each, count in counts.items():
        limit = group.limits[each]
        if not limit or count < limit:
            assert fullest - count < 2 + group.balance.hysteresis
            assert count > 0 or fullest < 2


@settings(max_examples=60, deadline=None)
@given(_groups())
def test_rounds_with_the_same_view_converge_and_stay_still(group: _Group) -> None:
    before, counts = group.holders.copy(), group.counts()
    still = 0
    for _ in range(2 * len(before) + 3):
        still = 0 if group.round([group.present()] * len(group.limits)) or group.handoffs else still + 1
    assert still >= 2
    _check_even(group)
    assert group.moves <= len(before)
    for each, count in group.counts().items():
        limit = group.limits[each]
        assert not limit or count <= max(limit, counts[each])
    for was, now in zip(before, group.holders, strict=True):
        assert was == now or not was.startswith("go")


@settings(max_examples=60, deadline=None)
@given(_groups(), st.data())
def test_rounds_with_old_views_converge_and_stay_still(group: _Group, data: st.DataObject) -> None:
    old, still = group.present(), 0
    for _ in range(6 * len(group.holders) + 6):
        present = group.present()
        seen = [old if data.draw(st.booleans()) else present for _ in group.limits]
        still = 0 if group.round(seen) or present[1] else still + 1
        old = present
        if still == 3:
            break
    assert still == 3
    _check_even(group)


@pytest.mark.parametrize(("members", "each"), [(2, 8), (8, 8), (20, 3), (63, 1)])
def test_newcomer_gets_its_share_within_bounded_rounds(members: int, each: int) -> None:
    present = [f"p{i}" for i in range(members)]
    balance = Balance()
    group = _Group([who for who in present for _ in range(each)], dict.fromkeys([*present, "new"], 0), balance)
    share = members * each // (members + 1)
    for _ in range(share + 1):
        group.round([group.present()] * len(group.limits))
    assert group.counts()["new"] >= share - balance.hysteresis
