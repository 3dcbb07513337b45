"""ZooKeeper as the coordinators see it: requests, results and news as data (`model`), kept in memory or by a server."""

__all__: list[str] = []
