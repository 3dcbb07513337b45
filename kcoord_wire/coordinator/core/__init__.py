"""The coordinator's state machine: pure objects, events in, effects out; no codec, socket, clock or randomness."""

__all__: list[str] = []
