"""Share groups' records, without IO: what is delivered to whom, how often, and what became of it (KIP-932).

To change what becomes of a record: `share_partition.py`.
"""

__all__: list[str] = []
