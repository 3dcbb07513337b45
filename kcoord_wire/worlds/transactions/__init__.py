"""Transactions in the virtual world: the real coordinators and logs, applications that use them, and their laws."""

__all__: list[str] = []
