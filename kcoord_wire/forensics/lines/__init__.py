"""Histories of groups from the text that brokers and clients log.

To read another line: a template in `shapes`, and in `meanings` what it means and what is reported of it; a reason that
brokers or clients state, in `broker`. Lines become a history in `history`, by `broker` and `clients`.
"""

__all__: list[str] = []
