"""Connections to a Kafka cluster by confluent-kafka (extra ``kafka``), and what its errors mean in words.

Laws:

* Settings are librdkafka's, mainly for security; what the caller of `Cluster.make` needs overrules them.
* A first answer is waited for in bounded time; its absence is an error that says what to check.
* No request for metadata creates a topic.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from kcoord_wire.extras import require
from kcoord_wire.kernel.net import LogLimiter

_LOGGER: Final = logging.getLogger("kcoord_wire.clients.librdkafka")
_LOGGER.addHandler(logging.NullHandler())  # silent unless logging is configured
_LINES: Final = LogLimiter()
_LOGGER.addFilter(lambda record: _LINES.allows_line())  # while a broker is down, each client says so every second
_CONNECT_SECONDS: Final = 10.0  # a running broker answers long before


class Cluster:
    """A cluster, from which clients of librdkafka are made.

    :param bootstrap: ``host:port``, several with commas
    :param config: settings of librdkafka
    :param failure: class of the errors that are raised
    :param purpose: what needs the library, as the subject of the sentence that says that it is missing
    :param patience_s: seconds to wait for a response; for the first one ten at most
    :ivar kafka: the module `confluent_kafka`
    :ivar complaint: the last error that a client has reported beside its answers; a refused login stays
    :ivar result: waits for the future of a response and returns its result; one that must not block replaces it
    :raises MissingLibraryError: the extra is not installed
    """

    def __init__(
        self,
        bootstrap: str,
        config: Mapping[str, str] | None,
        failure: type[Exception],
        purpose: str,
        patience_s: float = 30.0,
    ) -> None:
        self.kafka: Any = require("confluent_kafka", "kafka", purpose)
        self.admin: Any = require("confluent_kafka.admin", "kafka", purpose)
        self.bootstrap = bootstrap
        self.complaint: Any = None
        self.patience_s = patience_s
        self.result: Callable[[Any], Any] = lambda future: future.result()
        self._failure = failure
        self._config: dict[str, Any] = {**(config or {}), "bootstrap.servers": bootstrap, "error_cb": self._complained}
        self._group_id = self._config.pop("group.id", None)  # admin clients and producers have none

    def make(self, kind: Any, settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Any:
        """Return a client of this class of confluent-kafka.

        :param settings: overrule those of the user
        :param defaults: are overruled by them
        """
        try:
            return kind({**(defaults or {}), **self._config, **settings}, logger=_LOGGER)
        except (self.kafka.KafkaException, ValueError, TypeError) as error:
            raise self._failure(f"librdkafka rejects these settings: {error_text(error)}") from None

    def make_consumer(
        self, settings: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, *, group_id: str | None = None
    ) -> Any:
        """Return a consumer that commits nothing by itself; librdkafka requires a group, which it never joins."""
        group = group_id or self._group_id or "kcoord-wire-reader"
        fixed = {"enable.auto.commit": False, "enable.auto.offset.store": False, "allow.auto.create.topics": False}
        return self.make(self.kafka.Consumer, {"group.id": group, **fixed, **settings}, defaults)

    def make_admin(self) -> Any:
        """Return an admin client."""
        return self.make(self.admin.AdminClient, {"allow.auto.create.topics": False})

    def partitions(self, topic: str, hint: str = "see its name") -> list[int]:
        """Return the partitions of a topic; `hint` as in `topic`."""
        return sorted(self.topic(topic, hint).partitions)

    def topic(self, topic: str, hint: str = "see its name") -> Any:
        """Return the metadata of a topic, as confluent-kafka has it.

        :param hint: what to do where the topic is missing
        """
        found = self._metadata().topics.get(topic)
        if found is None:
            raise self._failure(f"the cluster at {self.bootstrap} shows no topic {topic} ({hint})")
        if found.error is not None:
            raise self.refused(topic, found.error)
        return found

    def groups(self, admin: Any) -> list[str]:
        """Return the names of all consumer groups, sorted.

        :param admin: of `make_admin`
        """
        try:
            found = admin.list_consumer_groups(request_timeout=self._first_wait).result()
        except self.kafka.KafkaException as error:
            raise self.unreachable(error) from None
        if found.errors and not found.valid:
            raise self.unreachable(found.errors[0])
        return sorted(group.group_id for group in found.valid)

    def described(self, admin: Any, groups: Iterable[str]) -> dict[str, Any]:
        """Return the descriptions of groups, as confluent-kafka has them; a group without an answer is left out."""
        names = list(groups)
        found = admin.describe_consumer_groups(names, request_timeout=self._first_wait) if names else {}
        return self._answers(found)

    def committed(self, admin: Any, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
        """Return the committed offset of each topic and partition, by group; a group without an answer is left out."""
        request = self.kafka.ConsumerGroupTopicPartitions
        asked = [
            admin.list_consumer_group_offsets([request(group)], request_timeout=self._first_wait) for group in groups
        ]
        answered = self._answers({group: future for each in asked for group, future in each.items()})
        return {
            group: {
                (place.topic, place.partition): place.offset
                for place in found.topic_partitions
                if place.error is None and place.offset >= 0
            }
            for group, found in answered.items()
        }

    def ends(self, admin: Any, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the high watermark of each topic and partition; one whose leader does not answer is left out."""
        latest = self.admin.OffsetSpec.latest()
        asked = {self.kafka.TopicPartition(*place): latest for place in places}
        answered = self._answers(admin.list_offsets(asked, request_timeout=self._first_wait) if asked else {})
        return {(place.topic, place.partition): found.offset for place, found in answered.items()}

    @property
    def _first_wait(self) -> float:
        return min(self.patience_s, _CONNECT_SECONDS)

    def _answers(self, futures: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the results of those futures that do not fail."""
        found = {}
        for key, future in futures.items():
            with suppress(self.kafka.KafkaException):
                found[key] = self.result(future)
        return found

    def refused(self, topic: str, error: Any) -> Exception:
        """Return the error of a topic that a broker does not let us read."""
        codes = self.kafka.KafkaError
        if error.code() == codes.TOPIC_AUTHORIZATION_FAILED:
            return self._failure(f"not authorised to read {topic}: the user needs Describe and Read on that topic")
        if error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION):
            return self._failure(f"{topic} is gone from the cluster at {self.bootstrap}: {error_text(error)}")
        return self._failure(f"{topic} at {self.bootstrap} cannot be read: {error_text(error)}")

    def unreachable(self, error: Any) -> Exception:
        """Return the error of a cluster that does not answer, or refuses the login."""
        reason = error_text(self.complaint if self.complaint is not None else error)
        if self.complaint is not None and self.is_final(self.complaint):
            what = f"the broker at {self.bootstrap} refuses the login: {reason}; check the security settings"
            return self._failure(what)
        what = f"no broker answers at {self.bootstrap} within {self._first_wait:g} s"
        return self._failure(f"{what}: {reason}; check address, port and security.protocol")

    def is_final(self, error: Any) -> bool:
        """Return whether no later attempt can succeed."""
        codes = self.kafka.KafkaError
        return error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL, codes._FATAL)

    def _complained(self, error: Any) -> None:
        codes = self.kafka.KafkaError
        is_refused = self.complaint is not None and self.complaint.code() == codes._AUTHENTICATION
        if not is_refused and error.code() != codes._ALL_BROKERS_DOWN:
            self.complaint = error

    def _metadata(self) -> Any:
        """Return the metadata of all topics: a request for one by name may make a broker create it."""
        admin = self.make_admin()
        wait = self._first_wait
        end = time.monotonic() + wait
        error: Any = None
        while time.monotonic() < end:
            admin.poll(0)
            if self.complaint is not None and self.is_final(self.complaint):
                break
            try:
                return admin.list_topics(timeout=min(2.0, wait))
            except self.kafka.KafkaException as failure:
                error = failure.args[0]
                if self.is_final(error):
                    break
        admin.poll(0)
        raise self.unreachable(error)


def error_text(error: Any) -> str:
    """Return the text of an error of confluent-kafka, without the codes around it; its name where it has no text."""
    if isinstance(error, Exception) and error.args and hasattr(error.args[0], "str"):
        error = error.args[0]
    if error is None:
        return "no answer"
    text = str(error.str() if hasattr(error, "str") else error).strip()
    return text or (str(error.name()) if hasattr(error, "name") else type(error).__name__)
