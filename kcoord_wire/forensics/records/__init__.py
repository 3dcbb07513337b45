"""Records of ``__consumer_offsets`` to histories: why a group rebalanced, from what the coordinator wrote.

To add a cause that records show: a rule in `classic` or a kind of change in `kip848`, then the table in `reader`.
"""
