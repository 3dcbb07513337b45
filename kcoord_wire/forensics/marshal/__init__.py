"""Histories of groups from Marshal's coordination topic.

To change how its log is explained: `reader` (claims), `claims` (rebalances), `live` (streams).
"""
