"""What is done to brokers, and the groups that live through it."""

from __future__ import annotations

import time
import warnings
from typing import Any, Final

from tests.incidents.hall import Hall, Scene
from tests.incidents.labels import Act
from tests.support.clients.heard import PATIENCE

PREFERRED: Final = 0
"""The election type of ElectLeaders (KIP-460) that takes the first replica of the list."""


_ACTS: Final = {"kill": "kill -9, and start again", "stop": "stop, and start again", "freeze": "SIGSTOP"}


def lives_through(scene: Scene, library: str, session_ms: int, **options: Any) -> None:
    """Members while a broker has its trouble; they are together again afterwards."""
    names = scene.names
    for name in names:
        scene.joins(library, name, session_ms=session_ms, **options)
    scene.waits(lambda: scene.has(*names), "they are not in")
    scene.waits(lambda: all(member.now_owned for member in scene.members), "they do not share")
    time.sleep(1)
    scene.run.session_ms = session_ms
    scene.now_ready()
    scene.pass_by()
    scene.waits(lambda: scene.has(*names), "they are not together again")
    time.sleep(3)
    scene.goes_home()


def is_out(hall: Hall, how: str, seconds: float) -> list[Act]:
    """The broker is away for a time, and starts on what it has written; or it stands still.

    :param how: ``kill``, ``stop`` in order, or ``freeze`` (SIGSTOP), as a machine that swaps or a long garbage
        collection: connections stay, nothing is answered
    """
    broker = hall.brokers[0]
    start = time.time_ns()
    getattr(broker, how)()
    time.sleep(seconds)
    if how == "freeze":
        broker.thaw()
    else:
        broker.start(port=broker.port)
    return [Act(start, _ACTS[how], broker.address, time.time_ns())]


def shut_down_one(hall: Hall, kills: bool) -> list[Act]:
    """The coordinator of the groups is shut down or killed, and another broker takes over.

    The controller, which has to live on, gives the groups away before.
    """
    acts = reassign(hall) if hall.coordinator(hall.plans[0].name).node_id == 1 else []
    broker = hall.coordinator(hall.plans[0].name)
    start = time.time_ns()
    if kills:
        broker.kill()
    else:
        broker.stop()
    return [*acts, Act(start, "kill -9" if kills else "controlled shutdown", broker.address)]


def reassign(hall: Hall) -> list[Act]:
    """The partition of the groups gets another replica first in its list, and that one is elected."""
    broker = hall.coordinator(hall.plans[0].name)
    # Imported here: kafka-python reads its schemas by a function that Python calls deprecated, and warnings are errors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import TopicPartition
        from kafka.admin import KafkaAdminClient

    partition = TopicPartition("__consumer_offsets", 0)
    others = [one.node_id for one in hall.brokers if one is not broker]
    start = time.time_ns()
    admin = KafkaAdminClient(bootstrap_servers=broker.inside_address, client_id="operator")
    try:
        admin.alter_partition_reassignments({partition: [*others, broker.node_id]})
        end = time.monotonic() + PATIENCE
        while hall.coordinator(hall.plans[0].name) is broker and time.monotonic() < end:
            time.sleep(0.5)
            admin.elect_leaders(PREFERRED, {"__consumer_offsets": [0]}, raise_errors=False)
    finally:
        admin.close()
    return [Act(start, "reassign the partition of the groups", broker.address, time.time_ns())]


def stops_a_replica(hall: Hall, seconds: float) -> list[Act]:
    """A broker that has a replica of the groups' partition stands still, and is not their coordinator."""
    coordinator = hall.coordinator(hall.plans[0].name)
    if coordinator.node_id != 1:  # the controller has to live on
        reassign(hall)
        coordinator = hall.coordinator(hall.plans[0].name)
    replica = next(broker for broker in hall.brokers if broker is not coordinator)
    start = time.time_ns()
    replica.freeze()
    time.sleep(seconds)
    replica.thaw()
    return [Act(start, f"SIGSTOP of the replica {replica.address}", coordinator.address, time.time_ns())]
