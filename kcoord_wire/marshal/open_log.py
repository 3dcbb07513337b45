"""The log that a URL names, for commands and settings.

open_log("kafka://broker:9092/__marshal")       # several brokers with commas; the topic may be left out
open_log("file:/var/lib/marshal")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from kcoord_wire.marshal.file_log import FileLog
from kcoord_wire.marshal.kafka_log import TOPIC, KafkaLog
from kcoord_wire.marshal.log import Log, LogError

_FORMS: Final = "kafka://HOST:PORT[,HOST:PORT]/TOPIC or file:/FOLDER"


def open_log(url: str, config: Mapping[str, str] | None = None) -> Log:
    """Open a coordination log.

    :param config: settings of librdkafka, for Kafka
    :raises MissingLibraryError: a library of the extra ``kafka`` or ``records`` is not installed
    :raises LogError: the URL has no such form, or the log cannot be used
    """
    scheme, separator, rest = url.partition(":")
    if scheme == "kafka" and rest.startswith("//"):
        brokers, _, topic = rest[2:].partition("/")
        if brokers and "/" not in topic:
            return KafkaLog(brokers, topic or TOPIC, config)
    elif scheme == "file" and separator:
        path = unquote(rest.removeprefix("//"))
        if path.startswith("/"):
            return FileLog(path)
    raise LogError(f"{url!r} names no log: {_FORMS} is needed")
