"""A member that is Kafka's own Java client: tests/support/java/JavaMember.java, compiled against one version of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.clients.members import Client
from tests.support.kafka_broker import KAFKA, class_path, compile_java, java

_SOURCE: Final = Path(__file__).parents[1] / "java" / "JavaMember.java"
_LOGGER: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showThreadName=false")


def java_client(classes: Path, version: str = KAFKA) -> Client:
    """Compile the program into the folder `classes`. It may log nothing as a warning or worse."""
    path = compile_java(_SOURCE, classes, class_path("kafka-clients", version))
    return Client(f"kafka-clients {version}", java(path, *_LOGGER, "JavaMember"))
