"""Topics in memory, and the requests about them that consumers and producers need."""

__all__: list[str] = []
