"""The pure machines that are mutated, with what may notice: random scripts of their worlds, and their own tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.scripts import Script
from kcoord_wire.worlds import script_maker
from kcoord_wire.worlds.marshal.marshal_world import WRITERS

Maker = Callable[[int], Script[Any]]


class Machine(NamedTuple):
    """A machine.

    :ivar modules: below `kcoord_wire`
    :ivar scripts: makers of random scripts, each with the number of seeds that are played
    :ivar tests: below `tests`
    """

    modules: Sequence[str]
    scripts: Sequence[tuple[Maker, int]]
    tests: Sequence[str]


_GROUP: Final = (script_maker("group"), 70)
_CONSUMER_GROUPS: Final = (script_maker("consumer-groups"), 30)
_MARSHAL: Final = script_maker("marshal")

MACHINES: Final[Mapping[str, Machine]] = {
    "classic": Machine(
        [f"coordinator.core.{name}" for name in ("machine", "rebalancing", "groups", "offsets", "regexes")],
        [_GROUP, _CONSUMER_GROUPS],
        [
            f"coordinator/test_{name}.py"
            for name in ("machine", "groups", "offsets", "interleavings", "regexes", "admin", "host")
        ],
    ),
    "kip848": Machine(
        [
            f"coordinator.consumer_groups.{name}"
            for name in ("group", "progress", "heartbeat", "machine", "classic_members", "records")
        ],
        [_CONSUMER_GROUPS],
        ["coordinator/consumer_groups", "coordinator/test_offsets.py"],
    ),
    "transactions": Machine(
        ["coordinator.transactions.machine", "coordinator.transactions.transaction"],
        [(script_maker("transactions"), 40)],
        ["coordinator/test_transactions_machine.py", "coordinator/test_transaction_flow.py"],
    ),
    "draft": Machine(
        [
            f"central.draft.{name}"
            for name in ("coordinator", "groups", "rebalance", "purgatory", "subscription", "context", "consumer")
        ],
        [(script_maker("central"), 30)],
        ["central/draft"],
    ),
    "rewrite": Machine(
        [f"central.rewrite.{name}" for name in ("coordinator", "group", "member", "membership", "context", "layout")],
        [
            (script_maker("rewrite"), 60),
            (partial(script_maker("rewrite"), stops_with_session=True, allows_overlaps=False), 40),
        ],
        ["central/rewrite"],
    ),
    "marshal": Machine(
        [f"marshal.{name}" for name in ("claiming", "holding", "member", "world_state", "context")],
        [(_MARSHAL, 80), (partial(_MARSHAL, rows=WRITERS), 20)],
        [
            f"marshal/test_{name}.py"
            for name in ("machine", "claiming", "holding", "member", "at_most_once", "context", "observer")
        ],
    ),
    "consumers": Machine(
        ["consumer.classic_member", "consumer.kip848_member"],
        [_GROUP, _CONSUMER_GROUPS],
        ["consumer/test_machine.py", "consumer/test_consumer_group_member.py", "worlds/group/test_members.py"],
    ),
}
