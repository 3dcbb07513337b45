"""The simulated world of each protocol: what `kernel.virtual` is for, with machines, laws and random scripts.

`WORLDS` names them for the command line. To add a world: derive it from `kernel.virtual.world.World`, say when it
`is_settled`, declare the rows of its random scripts and a `random_script`, and add its module here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from kcoord_wire.kernel.virtual.scripts import Script

WORLDS: Final[Mapping[str, str]] = {
    "group": "kcoord_wire.worlds.group.world",
    "consumer-groups": "kcoord_wire.worlds.consumer_groups.consumer_group_world",
    "transactions": "kcoord_wire.worlds.transactions.world",
    "central": "kcoord_wire.worlds.central.draft_world",
    "rewrite": "kcoord_wire.worlds.central.rewrite_world",
    "marshal": "kcoord_wire.worlds.marshal.marshal_world",
    "proposal": "kcoord_wire.worlds.proposal.proposal_world",
}
"""The module of each world, by name."""


def script_maker(world: str) -> Callable[..., Script[Any]]:
    """Return `random_script` of a world, whose module is imported for that; `scripts.run_script` runs what it makes.

    :param world: a key of `WORLDS`
    :raises KeyError: no such world
    """
    maker: Callable[..., Script[Any]] = import_module(WORLDS[world]).random_script
    return maker
