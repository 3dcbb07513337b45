"""Groups of KIP-848: pure objects, events in, effects out; no socket, clock or randomness."""

__all__: list[str] = []
