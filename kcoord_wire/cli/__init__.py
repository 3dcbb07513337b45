"""The ``kcoord`` command: one module per command."""

__all__: list[str] = []
