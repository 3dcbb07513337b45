"""The state machines of "the 0.8 consumer-coordinator draft": its coordinator and its consumer."""

__all__: list[str] = []
