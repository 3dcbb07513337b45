"""The ``kcoord`` command: one module a command."""

__all__: list[str] = []
