"""A recording proxy for Kafka clients, and the format of its recordings."""

__all__: list[str] = []
