"""The recording proxy for Kafka clients (`proxy`), and the format of its recordings (`recording`)."""

__all__: list[str] = []
