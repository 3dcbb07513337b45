"""A deterministic world for state machines: virtual clock, disk and network, scripts of faults, repeatable from a seed.

Nothing here knows a protocol. A protocol's part is a room of `kcoord_wire.worlds`: in `kcoord_wire.worlds.group` it is
Kafka's group coordination.
"""
