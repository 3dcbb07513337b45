"""The state machines of "Kafka 0.9 Consumer Rewrite Design": its coordinator and its member."""

__all__: list[str] = []
