"""The members of share groups (KIP-932): pure objects, events in, effects out; no socket, clock or randomness.

What share groups have in common with those of KIP-848 is in `consumer_groups`, in the modules whose names begin with
``epoch``. To change what is checked or answered, or when an epoch begins: `sharing.py`; what the log keeps:
`share_records.py`; how operators set offsets: `share_offsets.py`. Which records a member gets, and the state of share
partitions, are not known here: effects ask for the state of partitions, and an event says that it is there.
"""

__all__: list[str] = []
