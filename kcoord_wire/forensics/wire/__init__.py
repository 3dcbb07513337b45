"""Exchanges to histories: why a group rebalanced, from what clients and coordinator sent.

To add a cause: the list in the docstring of `rules`. To change what counts as an outage: `outages`, on the answers in
`signs`; as a death or a wait: `members`. What missing packets may cost: `gaps`. Lag and resets: `lag`.
"""
