"""Topics, and the requests about them that consumers, producers and AdminClients need.

To answer another request: `Topics` in `topics.py` names who does: `fetching.py` (reading), `metadata.py` (the
cluster), `administration.py` (topics and partitions), `configuration.py` on the tables of `configs.py`. How long
records are kept: `retention.py`. What readers of ``__consumer_offsets`` and ``__transaction_state`` see:
`internal.py`; when: `LogView` of `coordinator/host.py`. A release of Kafka for `as_version`: `releases.py`, from that
release's `ApiKeys`.
"""

__all__: list[str] = []
