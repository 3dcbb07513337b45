"""What is done to brokers, and the groups that live through it."""

from __future__ import annotations

import time
from typing import Any

from tests.incidents.hall import Hall, Scene
from tests.incidents.labels import Act

__all__ = ["freeze", "kill", "lives_through", "restart", "shut_down_one"]


def lives_through(scene: Scene, library: str, session_ms: int, **options: Any) -> None:
    """Two members while a broker has its trouble; they are together again afterwards."""
    names = ("first", "second")
    for name in names:
        scene.joins(library, name, session_ms=session_ms, **options)
    scene.waits(lambda: scene.has(*names), "they are not in")
    scene.waits(lambda: all(member.now_owned for member in scene.members), "they do not share")
    time.sleep(1)
    scene.run.session_ms = session_ms
    scene.now_ready()
    scene.pass_by()
    scene.waits(lambda: scene.has(*names), "they are not together again")
    time.sleep(4)
    for member in reversed(scene.members):
        member.kill()


def kill(hall: Hall, down_seconds: float) -> list[Act]:
    """kill -9, some time without a broker, and a start on what it has written."""
    broker = hall.brokers[0]
    start = time.time_ns()
    broker.kill()
    time.sleep(down_seconds)
    broker.start(port=broker.port)
    return [Act(start, "kill -9, and start again", broker.address, time.time_ns())]


def restart(hall: Hall, down_seconds: float) -> list[Act]:
    """An orderly stop and a start."""
    broker = hall.brokers[0]
    start = time.time_ns()
    broker.stop()
    time.sleep(down_seconds)
    broker.start(port=broker.port)
    return [Act(start, "stop, and start again", broker.address, time.time_ns())]


def freeze(hall: Hall, seconds: float) -> list[Act]:
    """SIGSTOP, as a machine that swaps or a long garbage collection: connections stay, nothing is answered."""
    broker = hall.brokers[0]
    start = time.time_ns()
    broker.freeze()
    time.sleep(seconds)
    broker.thaw()
    return [Act(start, "SIGSTOP", broker.address, time.time_ns())]


def shut_down_one(hall: Hall, kills: bool) -> list[Act]:
    """The coordinator of the first group, if it is not the controller, is shut down or killed; another takes over."""
    broker = hall.coordinator(hall.plans[0].name)
    start = time.time_ns()
    if kills:
        broker.kill()
    else:
        broker.stop()
    return [Act(start, "kill -9" if kills else "controlled shutdown", broker.address)]
