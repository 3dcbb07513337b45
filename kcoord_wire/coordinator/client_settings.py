"""Settings of clients that make tests fast, by each client's own names.

A client's defaults spare brokers that thousands of others use: it sends a heartbeat every three seconds, so it hears of
a rebalance after 1.5 s on average, waits half a second for records, and doubles its pauses up to ten seconds. The
coordinator of a test has a handful of clients.

Laws:

* The session stays at what brokers allow at least by default, for a test must not lose a member because its machine
  stood still. A test that needs crashes noticed sooner sets it, and the coordinator's
  ``group.min.session.timeout.ms``.
* Nothing here changes what a client does: where it starts, what it commits, how it assigns.

Source: the clients' own lists of settings: CONFIGURATION.md of librdkafka, `ConsumerConfig` of the Java client,
`KafkaConsumer` of kafka-python, `AIOKafkaConsumer`, and `kcoord_wire.consumer`.
"""

from __future__ import annotations

from typing import Any, Final

from kcoord_wire.kernel.settings import suggestion

HEARTBEAT_MS: Final = 100
SESSION_MS: Final = 6_000
FETCH_WAIT_MS: Final = 50
METADATA_AGE_MS: Final = 1_000
BACK_OFF_MS: Final = 10
LONGEST_BACK_OFF_MS: Final = 100

_JAVA: Final = {
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "session.timeout.ms": SESSION_MS,
    "fetch.max.wait.ms": FETCH_WAIT_MS,
    "metadata.max.age.ms": METADATA_AGE_MS,
    "reconnect.backoff.ms": BACK_OFF_MS,
    "reconnect.backoff.max.ms": LONGEST_BACK_OFF_MS,
    "retry.backoff.ms": BACK_OFF_MS,
    "retry.backoff.max.ms": LONGEST_BACK_OFF_MS,
}
_LIBRDKAFKA: Final = {
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "session.timeout.ms": SESSION_MS,
    "fetch.wait.max.ms": FETCH_WAIT_MS,
    "fetch.error.backoff.ms": BACK_OFF_MS,
    "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
    "metadata.max.age.ms": 3 * METADATA_AGE_MS,  # as in its defaults: a topic is forgotten after three refreshes
    "reconnect.backoff.ms": BACK_OFF_MS,
    "reconnect.backoff.max.ms": LONGEST_BACK_OFF_MS,
    "retry.backoff.ms": BACK_OFF_MS,
    "retry.backoff.max.ms": LONGEST_BACK_OFF_MS,
}
_AIOKAFKA: Final = {
    "heartbeat_interval_ms": HEARTBEAT_MS,
    "session_timeout_ms": SESSION_MS,
    "fetch_max_wait_ms": FETCH_WAIT_MS,
    "metadata_max_age_ms": METADATA_AGE_MS,
    "retry_backoff_ms": BACK_OFF_MS,
}
_KAFKA_PYTHON: Final = {
    **_AIOKAFKA,
    "reconnect_backoff_ms": BACK_OFF_MS,
    "reconnect_backoff_max_ms": LONGEST_BACK_OFF_MS,
}
_KCOORD_WIRE: Final = {**_AIOKAFKA, "retry_backoff_max_ms": LONGEST_BACK_OFF_MS}

CLIENTS: Final = {
    "librdkafka": ("bootstrap.servers", _LIBRDKAFKA),
    "confluent-kafka": ("bootstrap.servers", _LIBRDKAFKA),
    "java": ("bootstrap.servers", _JAVA),
    "kafka-python": ("bootstrap_servers", _KAFKA_PYTHON),
    "aiokafka": ("bootstrap_servers", _AIOKAFKA),
    "kcoord_wire": ("bootstrap_servers", _KCOORD_WIRE),
}
"""By client: how it calls the address, and its settings."""


def client_settings(client: str, address: str) -> dict[str, Any]:
    """Return a consumer's settings, with the address; times are ms.

    :raises ValueError: there is no such client; the text says which was meant
    """
    if client not in CLIENTS:
        raise ValueError(f"no client {client!r}; {suggestion(client, CLIENTS)}")
    name, settings = CLIENTS[client]
    return {name: address, **settings}
