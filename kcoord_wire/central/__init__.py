"""The designs in which the broker assigns: "the 0.8 consumer-coordinator draft", "Kafka 0.9 Consumer Rewrite Design".

`draft` and `rewrite` hold the state machines, which are pure; the modules beside them run the machines on sockets and
on ZooKeeper.
"""

__all__: list[str] = []
