"""Logs of partitions on a disk: their batches, producers, open transactions and leader epochs.

To change which topics are known after a restart: `journal`; how records are kept: `partition_log` on `segments`; what a
batch must be: `batch_header`, its records: `record_rules`; what is known of its producer and transaction: `producers`.
"""

__all__: list[str] = []
