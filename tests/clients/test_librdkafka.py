"""What errors of librdkafka mean in words. Its users, `live` and `kafka_log`, have tests with connections."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from kcoord_wire.clients.librdkafka import Cluster, error_text


def test_refusals_say_what_to_do() -> None:
    cluster = Cluster("127.0.0.1:1", None, OSError, "a test", 1)
    denied = cluster.refused("t", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert str(denied) == "not authorised to read t: the user needs Describe and Read on that topic"
    assert "t is gone" in str(cluster.refused("t", KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    assert "cannot be read" in str(cluster.refused("t", KafkaError(KafkaError.OFFSET_OUT_OF_RANGE)))


def test_a_refused_login_is_not_forgotten() -> None:
    cluster = Cluster("127.0.0.1:1", None, OSError, "a test", 1)
    cluster._complained(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    cluster._complained(KafkaError(KafkaError._TRANSPORT, "closed"))
    assert "refuses the login: wrong password" in str(cluster.unreachable(None))


def test_the_text_of_an_error_has_no_codes() -> None:
    error = KafkaError(KafkaError._TRANSPORT, "closed")
    assert error_text(error) == error_text(KafkaException(error)) == "closed"
    assert error_text(None) == "no answer"
