"""The coordinator's log on disk, in the format of ``__consumer_offsets``: segments, recovery, compaction.

To change which records count, what compaction keeps, or how a log is repaired: `store`; how batches are read and
written: `segments`. The records themselves are in `kcoord_wire.records`.
"""

__all__: list[str] = []
