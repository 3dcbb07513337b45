"""A program that uses a coordinator once, with one client library, and reports how that went.

It is given JSON as its argument and prints JSON: ``{"committed": OFFSET}`` after it has produced a record, read it in a
group and committed, or ``{"error": NAME, "text": TEXT}`` where it was refused. Libraries leave threads and sockets
behind when they are refused; here they end with the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

PATIENCE = 25.0  # seconds


class Task(NamedTuple):
    library: str
    address: str
    ca_file: str
    mechanism: str
    name: str
    password: str
    group: str
    topic: str


class RefusedError(Exception):
    """A refusal that a library reports to a callback.

    :ivar name: of the error
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class LoggedRefusal(logging.Handler):
    """Ends the program with a refusal that a library only logs: it would go on trying until its own timeout, which
    has to be long enough for a busy machine."""

    def __init__(self, logger: str) -> None:
        super().__init__(logging.WARNING)
        logging.getLogger(logger).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "Authentication failed" in (text := record.getMessage()):
            answer({"error": "SASL_AUTHENTICATION_FAILED", "text": text})


def deadline() -> Callable[[], None]:
    """Raises TimeoutError when called after the end of patience."""
    end = time.monotonic() + PATIENCE

    def check() -> None:
        if time.monotonic() > end:
            raise TimeoutError("nothing has happened in time")

    return check


def kafka_python(task: Task, value: bytes) -> int:
    import kafka

    LoggedRefusal("kafka")
    settings: dict[str, Any] = {
        "bootstrap_servers": task.address,
        "bootstrap_timeout_ms": int(PATIENCE * 1000),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": task.ca_file,
        "sasl_mechanism": task.mechanism,
        "sasl_plain_username": task.name,
        "sasl_plain_password": task.password,
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send(task.topic, value, partition=0).get(PATIENCE)
    consumer = kafka.KafkaConsumer(
        task.topic, group_id=task.group, auto_offset_reset="earliest", enable_auto_commit=False, **settings
    )
    check = deadline()
    # A poll that ends during the join loses its result (kafka-python 3.0.12): the member is in the group and never
    # fetches. On a busy machine 200 ms are over then, so one poll may take as long as the whole program.
    while value not in [record.value for records in consumer.poll(PATIENCE * 1000).values() for record in records]:
        check()
    consumer.commit()
    committed: int = consumer.committed(kafka.TopicPartition(task.topic, 0))
    consumer.close()
    producer.close()
    return committed


def librdkafka(task: Task, value: bytes) -> int:
    import confluent_kafka

    def report(error: confluent_kafka.KafkaError | None) -> None:
        if error is not None and error.code() not in (
            confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
            confluent_kafka.KafkaError._TRANSPORT,
        ):
            raise RefusedError(error.name(), error.str())

    settings: dict[str, Any] = {
        "bootstrap.servers": task.address,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": task.ca_file,
        "sasl.mechanism": task.mechanism,
        "sasl.username": task.name,
        "sasl.password": task.password,
        "error_cb": report,
    }
    producer = confluent_kafka.Producer(settings)
    producer.produce(task.topic, value, partition=0, on_delivery=lambda error, _: report(error))
    check = deadline()
    while len(producer):
        check()
        producer.poll(0.1)
    group = {"group.id": task.group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings | group)
    consumer.subscribe([task.topic])
    while True:
        check()
        message = consumer.poll(0.2)
        if message is not None:
            report(message.error())
            if message.value() == value:
                break
    committed = max(part.offset for part in consumer.commit(asynchronous=False) or [])
    consumer.close()
    return committed


def aiokafka(task: Task, value: bytes) -> int:
    return asyncio.run(asyncio.wait_for(_aiokafka(task, value), PATIENCE))


async def _aiokafka(task: Task, value: bytes) -> int:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    LoggedRefusal("aiokafka")
    settings: dict[str, Any] = {
        "bootstrap_servers": task.address,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=task.ca_file),
        "sasl_mechanism": task.mechanism,
        "sasl_plain_username": task.name,
        "sasl_plain_password": task.password,
    }
    producer = AIOKafkaProducer(**settings)
    await producer.start()
    await producer.send_and_wait(task.topic, value, partition=0)
    await producer.stop()
    group = {"group_id": task.group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with AIOKafkaConsumer(task.topic, **group, **settings) as consumer:
        async for record in consumer:
            if record.value == value:
                break
        await consumer.commit()
        committed: int = await consumer.committed(TopicPartition(task.topic, 0))
    return committed


def kcoord(task: Task, value: bytes) -> int:
    return asyncio.run(asyncio.wait_for(_kcoord(task, value), PATIENCE))


async def _kcoord(task: Task, value: bytes) -> int:
    import kcoord_wire as kw
    from kcoord_wire.consumer import Consumer, ConsumerSettings
    from kcoord_wire.consumer.connection import BrokerConnection, ConnectionSettings
    from kcoord_wire.consumer.errors import AuthenticationError, GroupError, TopicError
    from kcoord_wire.consumer.settings import Sasl, tls_context
    from kcoord_wire.kernel.net import parse_address
    from tests.support.clients.producing import produce

    tls, sasl = tls_context(task.ca_file), Sasl(task.mechanism, task.name, task.password)
    secured = ConnectionSettings(tls=tls, sasl=sasl)
    settings = ConsumerSettings(
        bootstrap_servers=task.address,
        group_id=task.group,
        tls=tls,
        sasl=sasl,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        with suppress(RuntimeError):  # where it may not write the consumer, which may not read, has to say so
            await produce(task.address, task.topic, [(0, value)], secured)
        async with Consumer(settings) as consumer:
            consumer.subscribe([task.topic])
            async for record in consumer:
                if record.value == value:
                    break
            await consumer.commit()
        connection = await BrokerConnection.open(*parse_address(task.address), secured)
        topic = kw.OffsetFetchRequestTopic(name=task.topic, partition_indexes=[0])
        answer = await connection.request(kw.OffsetFetchRequest(group_id=task.group, topics=[topic]), 7)
        await connection.close()
        committed: int = answer.topics[0].partitions[0].committed_offset
        return committed
    except AuthenticationError as error:
        raise RefusedError("SASL_AUTHENTICATION_FAILED", str(error)) from error
    except (GroupError, TopicError) as error:
        raise RefusedError(error.error.name, str(error)) from error


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    libraries = {"kafka-python": kafka_python, "librdkafka": librdkafka, "aiokafka": aiokafka, "kcoord-wire": kcoord}
    use = libraries[task.library]
    try:
        committed = use(task, f"{task.library} {task.mechanism} {task.group}".encode())
        answer({"committed": committed})
    except RefusedError as error:
        answer({"error": error.name, "text": str(error)})
    except Exception as error:
        answer({"error": type(error).__name__, "text": str(error)})


def answer(outcome: dict[str, Any]) -> NoReturn:
    """Print the outcome, and end at once, with the threads that still try to connect."""
    print(json.dumps(outcome), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
