"""An asyncio event loop on a virtual clock, with a network in memory: unmodified programs, repeatable from a seed.

    async def outage(world):
        ...                                     # the program under test, as it is; asyncio.sleep(300) takes no time

    world = VirtualWorld(seed=7)
    world.at(60, world.network.cut, "app", "kafka", 300)
    world.run(outage(world))

PyPI has loops of this kind. simloom 0.5 and seedloop 0.4 need Python 3.12, where this package runs on 3.11, and
seedloop carries no byte streams; async-solipsism 0.10 is under the GPL and has neither faults nor a seed.

Nothing here knows a protocol: `kcoord_wire.worlds.group.broker` puts the group coordinator on it.
"""

from kcoord_wire.kernel.virtual.loop.loop import DeadlockError, Host, LimitError, NotSimulatedError, VirtualLoop
from kcoord_wire.kernel.virtual.loop.network import VirtualNetwork
from kcoord_wire.kernel.virtual.loop.virtual_world import VirtualWorld

__all__ = ["DeadlockError", "Host", "LimitError", "NotSimulatedError", "VirtualLoop", "VirtualNetwork", "VirtualWorld"]
