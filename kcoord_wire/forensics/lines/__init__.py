"""Histories of groups from the text that brokers and clients log."""

__all__: list[str] = []
