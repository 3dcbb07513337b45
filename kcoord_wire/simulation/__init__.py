"""A deterministic world for state machines: virtual clock, disk and network, repeatable from a seed.

    with Cluster(seed=7) as sim: ...  # a coordinator and its members on a virtual clock

The group protocol's part of it is `kcoord_wire.simulation.group`.
"""

from kcoord_wire.simulation.group.cluster import Cluster

__all__ = ["Cluster"]
