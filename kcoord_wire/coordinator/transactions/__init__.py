"""The transaction coordinator, without IO: transactional ids, their producers and transactions.

To change what becomes of a transaction: `transaction.py` (the moves, what the log keeps), then `machine.py` (requests).
What it needs of topics and groups is in `coordinator/transaction_flow.py`; offsets of transactions in
`core/offsets.py`.
"""

__all__: list[str] = []
