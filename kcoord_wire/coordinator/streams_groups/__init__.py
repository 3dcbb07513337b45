"""Streams groups (KIP-1071): the application's topology, tasks and their assignment, and what the log keeps of them.

`topology.py` works out the internal topics, `streams_group.py` holds a group, `progress.py` moves it on, `heartbeat.py`
and `describing.py` answer requests, `streams_records.py` writes and reads the log. To change what a member may run:
`next_member` in `progress.py`; which internal topics there are, with how many partitions: `configure` in `topology.py`;
the assignor: `kcoord_wire.assignors.streams`.
"""
