"""Histories of groups from Marshal's coordination topic."""

__all__: list[str] = []
