"""ZooKeeper as the coordinators see it: requests, results and news as data (`requests`), kept in memory or by a server.

To let machines ask something new: a request in `requests`, then both registries, `memory` and `registry`, which have
one contract: tests/zookeeper/test_contract. Election and lease of a coordinator: `leadership`.
"""

__all__: list[str] = []
