"""A deterministic world for state machines: virtual clock, disk and network, repeatable from a seed.

Nothing here knows a protocol. A protocol's part is a room of its own: `kcoord_wire.simulation.group` is Kafka's group
coordination.
"""

__all__: list[str] = []
