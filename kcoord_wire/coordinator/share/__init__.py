"""Share groups' records, without IO: what is delivered to whom, how often, and what became of it (KIP-932).

To change what becomes of a record: `share_partition.py`; what members ask: `share_machine.py`, and `sessions.py` for
what a session remembers; what other brokers ask: `state_requests.py`. What the log keeps is in `shared.py`. The
partitions that are read are in `topics/shared_logs.py`, the members of groups in `share_groups/`.
"""

__all__: list[str] = []
