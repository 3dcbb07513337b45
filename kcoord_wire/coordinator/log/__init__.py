"""The coordinator's log on disk, in the format of ``__consumer_offsets``: segments, recovery, compaction."""

__all__: list[str] = []
