"""The designs in which the broker assigns: "the 0.8 consumer-coordinator draft", "Kafka 0.9 Consumer Rewrite Design".

`draft` and `rewrite` hold the state machines, which are pure; the modules beside them run the machines on sockets and
on ZooKeeper.

To change what peers may cost: `peer` (limits), `server`; tests/central/test_server, test_hostile. What the frames
are: `dialects`. What `kcoord central status` says: `status`, and `draft.coordinator`.
To change the draft's consumer on sockets: `client`, `fetcher`; tests/central/test_client, test_delivery. How it reads
Kafka's records: `kafka_fetcher`.
"""

__all__: list[str] = []
