"""Exchanges to histories: why a group rebalanced, from what clients and coordinator sent."""

__all__: list[str] = []
