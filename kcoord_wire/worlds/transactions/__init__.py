"""Transactions in the virtual world: the real coordinators and logs, applications that use them, and their laws.

To add a fault: a method of `world.TransactionCluster`, then a row of `world.ROWS`. A law: a check in `laws` with its
line in the head, then a planted bug in tests/support/planted_transaction_bugs.py.
"""

__all__: list[str] = []
