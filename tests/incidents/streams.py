"""What is done to instances of a Kafka Streams application.

Law: instances stay until the capture has ended, for their members do not leave their group when they are closed.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.incidents.hall import Scene
from tests.support.clients.heard import PATIENCE
from tests.support.stage import PARTITIONS
from tests.support.streams_app import Application, Instance

_CALM: Final = 4.0
"""Seconds after which tasks have warmed up and moved for good."""


class Instances:
    """The instances of one application: one for each name of the scene."""

    def __init__(self, scene: Scene, session_ms: int, static: bool) -> None:
        self._scene, self._static = scene, static
        folder = Path(scene.kept.enter_context(TemporaryDirectory()))
        self._application = Application(
            folder / "classes",
            folder,
            scene.bootstrap,
            "at_least_once",
            PARTITIONS,
            name=scene.name,
            topics=(scene.topic, scene.more),
            session_ms=session_ms,
        )
        self.running: dict[str, Instance] = {}

    def starts(self, name: str) -> Instance:
        with self._scene.host(name):
            more = {"group.instance.id": name} if self._static else {}
            instance = self._scene.kept.enter_context(self._application.start(name, **more))
        self.running[name] = instance
        return instance

    def gathers(self, *names: str) -> None:
        """Wait until just these instances are members, with all tasks."""
        clients = sorted(f"{name}-StreamThread-1-consumer" for name in names)
        self._scene.waits(lambda: self._scene.clients_now() == clients, f"{clients} are not together")
        end = time.monotonic() + PATIENCE
        while sum(len(self.running[name].active) for name in names) < 2 * PARTITIONS and time.monotonic() < end:
            time.sleep(0.1)


def _gather(scene: Scene, session_ms: int, static: bool = False) -> Instances:
    """The instances of the scene, which share all tasks."""
    instances = Instances(scene, session_ms, static)
    for number, name in enumerate(scene.names, 1):
        instances.starts(name)
        instances.gathers(*scene.names[:number])
    time.sleep(_CALM)
    scene.run.session_ms = session_ms
    scene.now_ready()
    return instances


def loses_an_instance(scene: Scene, library: str, session_ms: int, returns_ms: int | None = None) -> None:
    """One instance is killed.

    :param returns_ms: after which a supervisor starts it again; None for never
    """
    *others, victim = scene.names
    instances = _gather(scene, session_ms)
    scene.run.victims = [victim]
    scene.did("kill -9", victim)
    instances.running[victim].kill()
    if returns_ms is not None:
        time.sleep(returns_ms / 1000)
        instances.starts(victim)
        others.append(victim)
    time.sleep(session_ms / 1000)
    instances.gathers(*others)
    time.sleep(_CALM)


def freezes_an_instance(scene: Scene, library: str, session_ms: int, frozen_ms: int) -> None:
    """One instance is stopped for a time and goes on."""
    victim = scene.names[-1]
    instances = _gather(scene, session_ms)
    scene.run.victims = [victim]
    with scene.doing("SIGSTOP", victim):
        instances.running[victim].stop()
        time.sleep(frozen_ms / 1000)
        instances.running[victim].go_on()
    time.sleep(2)
    instances.gathers(*scene.names)
    time.sleep(_CALM)


def restarts_instances(scene: Scene, library: str, session_ms: int, count: int, static: bool = False) -> None:
    """Instances are closed in order and started again, one after the other.

    :param count: of them, from the last on
    :param static: whether they have a group.instance.id
    """
    restarted = list(reversed(scene.names))[:count]
    instances = _gather(scene, session_ms, static)
    scene.run.victims = restarted
    for name in restarted:
        with scene.doing("terminate, and start again", name):
            instances.running[name].close()
            instances.starts(name)
            if not static:
                time.sleep(session_ms / 1000 + 1)  # it is there twice until then
            instances.gathers(*scene.names)
        time.sleep(_CALM)
