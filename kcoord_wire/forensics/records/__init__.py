"""Records of ``__consumer_offsets`` to histories: why a group rebalanced, from what the coordinator wrote."""

__all__: list[str] = []
