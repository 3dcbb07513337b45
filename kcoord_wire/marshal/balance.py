"""Who hands over which partitions of a topic, so that members hold about as many each. A pure function.

Laws:

* Only a holder gives; a live claim is never taken. A member gives `Balance.gives_per_round` at once at most, those
  included that it is handing over already.
* A partition is given to a member with at least 2 + `Balance.hysteresis` fewer, or to one that has none from one that
  has two: so each move makes the counts more even, and none is undone by the next.
* Members that have sent Presence are given partitions, up to their `max_claims`, while their last message is fresh.
  Others, as those of the Go library, keep what they hold.
* Partitions that are being handed over count for the successor; free ones for the members with the fewest, who will
  claim them.
* All members with one view make one plan, of which each carries out its own part. So all that send Presence have to
  balance, or none: the plan counts on the fullest member.

Newest first: what a member has got last is given first, as the application has the least state for it.

Sources: the Go library has no balance. KCL 2 takes from a random victim among the fullest, with a limit per round, and
only where no lease has expired; Azure's EventProcessor had members taking partitions from each other in turns.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kcoord_wire.marshal.events import Balance
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.state import Claim, Place


class View(NamedTuple):
    """A topic as a member of a group sees it.

    :ivar partitions: of the topic
    :ivar now: by which claims are live, as in `WorldState.is_claimed`
    :ivar log_ms: time of the topic's coordination partition
    """

    state: WorldState
    group_id: str
    topic: str
    partitions: int
    now: int
    log_ms: int


class Give(NamedTuple):
    """One partition to hand over."""

    partition: int
    to_instance_id: str


def receivers(view: View) -> dict[str, int]:
    """Return the members that take partitions: how many at most (0: any number), by instance id.

    Of the instances of one client only the one that was heard of last counts; the others are former processes.
    """
    fresh_ms = view.state.interval_ms
    latest: dict[str, tuple[int, str, int]] = {}
    for member in view.state.members.get((view.group_id, view.topic), {}).values():
        if member.max_claims is not None and view.log_ms - member.seen_ms < fresh_ms:
            found = (member.seen_ms, member.instance_id, member.max_claims)
            latest[member.client_id] = max(found, latest.get(member.client_id, found))
    return {instance_id: max_claims for _, instance_id, max_claims in latest.values()}


class _Held(NamedTuple):
    """Who holds what, with handoffs counted for the successors.

    :ivar own: partitions of the member that asks, with the offset that won each
    :ivar giving: by instance: how many it is handing over
    """

    counts: Counter[str]
    own: list[tuple[int, int]]
    giving: Counter[str]
    free: int


def plan_gives(view: View, instance_id: str, balance: Balance, giving: Mapping[int, str]) -> list[Give]:
    """Return what a member should begin to hand over now.

    :param instance_id: the member that asks
    :param giving: what it is handing over already, to whom; the log may not show it yet
    """
    limits = receivers(view)
    held = _held(view, instance_id, giving)
    _give_free(held, limits)
    counts = [(held.counts[each], each) for each in limits]
    budgets = {each: balance.gives_per_round - held.giving[each] for each in limits}
    to = _plan(counts, limits, budgets, balance.hysteresis, instance_id)
    newest = sorted(held.own, reverse=True)
    return [Give(partition, successor) for (_, partition), successor in zip(newest, to, strict=False)]


def _held(view: View, instance_id: str, giving: Mapping[int, str]) -> _Held:
    held = _Held(Counter(), [], Counter(), 0)
    free = 0
    for partition in range(view.partitions):
        claim = view.state.claims.get(Place(view.group_id, view.topic, partition))
        if claim is None:
            free += 1
            continue
        holder = claim.instance_id if view.state.is_claimed(claim, view.now) else ""
        successor = giving.get(partition, "") if holder == instance_id else ""
        successor = successor or _successor(claim, view.log_ms)
        if holder and successor:
            held.giving[holder] += 1
        elif holder == instance_id:
            held.own.append((claim.token, partition))
        if successor or holder:
            held.counts[successor or holder] += 1
        else:
            free += 1
    return held._replace(free=free)


def _successor(claim: Claim, log_ms: int) -> str:
    """Return for which member a partition is meant; empty for none."""
    handoff = claim.handoff
    return handoff.to_instance_id if handoff is not None and log_ms <= handoff.until_ms else ""


def _give_free(held: _Held, limits: Mapping[str, int]) -> None:
    """Count the free partitions for the members with the fewest."""
    fewest = [(held.counts[each], each) for each in limits]
    heapq.heapify(fewest)
    free = held.free
    while free and fewest:
        count, each = heapq.heappop(fewest)
        if _has_room(count, limits[each]):
            held.counts[each] += 1
            free -= 1
            heapq.heappush(fewest, (count + 1, each))


def _has_room(count: int, limit: int) -> bool:
    return not limit or count < limit


def _plan(
    counts: Collection[tuple[int, str]],
    limits: Mapping[str, int],
    budgets: dict[str, int],
    hysteresis: int,
    instance_id: str,
) -> list[str]:
    """Return to whom the member that asks gives, one name for each partition, as its part of everybody's plan."""
    fewest = list(counts)
    fullest = [(-count, each) for count, each in counts if budgets[each] > 0]
    heapq.heapify(fewest)
    heapq.heapify(fullest)
    gives: list[str] = []
    while fewest and fullest:
        (least, receiver), (most, giver) = fewest[0], fullest[0]
        if not _has_room(least, limits[receiver]):
            heapq.heappop(fewest)
        elif -most - least >= 2 + hysteresis or (least == 0 and -most >= 2):
            heapq.heapreplace(fewest, (least + 1, receiver))
            budgets[giver] -= 1
            if giver == instance_id:
                gives.append(receiver)
            if budgets[giver]:
                heapq.heapreplace(fullest, (most + 1, giver))
            else:
                heapq.heappop(fullest)
        else:
            break
    return gives
