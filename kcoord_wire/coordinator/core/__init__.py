"""The coordinator's state machine: pure objects, events in, effects out; no codec, socket, clock or randomness.

To serve an api or a version, or change how it is refused, authorised or routed: its row in `apis.py`, then a handler.
To change what classic groups are answered: `machine.py` (JoinGroup to LeaveGroup, and while loading, `_refuses`),
`rebalancing.py` (joins that end, sessions), `offsets.py`, `admin.py`, each with rows in tests/coordinator; `make
interop` compares with Kafka.
To change who leads or coordinates what: `brokers.py`; what a stop, pause or move does is in `coordinator/server.py`.
To add a setting: `config.py`. What the log keeps of a group is at the end of `groups.py`.
"""

__all__: list[str] = []
