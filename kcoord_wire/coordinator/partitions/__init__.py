"""Logs of partitions on a disk: their batches, producers, open transactions and leader epochs."""

__all__: list[str] = []
