"""What every log on a disk is made of: files that take whole writes or none, and segments of checked record batches.

Laws:

* A segment is named after its first offset, and each of its batches begins where the one before it ended.
* What a crash can have left of the last write is told from damage; each log says what it does about either.

To add a log: write through a `tail.Tail`, read through `segments.SegmentScan` or, where every write is synced before
the next, through `segments.read_segments`. To change what counts as torn: `SegmentScan.is_torn`.
"""

__all__: list[str] = []
