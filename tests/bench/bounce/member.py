"""An instance of the rolling bounce: a client program that takes time to open and to close partitions.

It speaks lines.py, and reports its work as events of `real`: ``{"event": "work", "at": ms, "what": ...,
"partitions": [...]}``, in the time of CLOCK_MONOTONIC, which all processes of the machine share.

The library and the times are in the environment variable ``BOUNCE``, as JSON: ``library``, ``revoke_ms``,
``assign_ms``. Sleeping in a listener holds up what the library runs in the same thread: in librdkafka and kafka-python
heartbeats go on in theirs, with aiokafka and this package's consumer they wait.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Collection
from typing import Any

from kcoord_wire.worlds.consumer_groups.rolling_bounce import Work
from tests.support.clients.lines import emit, serve

LIBRARIES = {
    "aiokafka": ("aiokafka_member", "AiokafkaMember"),
    "confluent-kafka": ("confluent_member", "ConfluentMember"),
    "kafka-python": ("kafka_python_member", "KafkaPythonMember"),
    "kcoord-wire": ("kcoord_member", "KcoordMember"),
}


def report(what: Work, partitions: Collection[int] = ()) -> None:
    """Write an event."""
    emit("work", at=time.monotonic() * 1_000, what=what, partitions=sorted(partitions))


def bouncing(library: str, revoke_ms: int, assign_ms: int) -> Any:
    """The library's member with an application that opens and closes partitions in its listener."""
    module, name = LIBRARIES[library]
    made = getattr(importlib.import_module(f"tests.support.clients.{module}"), name)

    class Bouncing(made):  # type: ignore[misc]
        def join(self) -> None:
            report(Work.STARTS)
            super().join()

        def leave(self) -> None:
            report(Work.STOPS)
            self.own(set())  # aiokafka calls no listener when it is closed
            super().leave()

        def own(self, partitions: set[int]) -> None:
            closed, opened = self.owned - partitions, partitions - self.owned
            if closed or opened:
                report(Work.BLOCKS)
                report(Work.DROPS, closed)
                time.sleep((len(closed) * revoke_ms + len(opened) * assign_ms) / 1_000)
                self.owned = partitions
                report(Work.TAKES, opened)
                report(Work.RESUMES)

    return Bouncing


if __name__ == "__main__":
    serve(bouncing(**json.loads(os.environ["BOUNCE"])))
