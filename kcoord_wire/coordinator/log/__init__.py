"""The coordinator's logs on disk, in the formats of ``__consumer_offsets`` and ``__transaction_state``.

To change which records count or what compaction keeps: `batches`; when something is written, compacted or repaired:
`store`. Segments are in `kcoord_wire.log`, the records themselves in `kcoord_wire.records`.
"""

__all__: list[str] = []
