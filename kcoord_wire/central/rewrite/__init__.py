"""The state machines of "Kafka 0.9 Consumer Rewrite Design": its coordinator and its member.

To change JoinGroup, heartbeats, rebalances or commits: `membership`; takeovers of shards: `group`; who coordinates
which shard: `coordinator`; nodes in ZooKeeper: `layout`. A member: `member`. Tests: tests/central/rewrite,
worlds.central.
"""

__all__: list[str] = []
