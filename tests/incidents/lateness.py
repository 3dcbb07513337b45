"""What applications do too slowly: handlers that do not give up their partitions, polls that come late in turn."""

from __future__ import annotations

import time
from typing import Any

from tests.incidents.hall import Scene
from tests.incidents.labels import Act
from tests.incidents.scenes import gather


def lets_the_group_wait(
    scene: Scene, library: str, linger_ms: int, poll_ms: int, session_ms: int, **options: Any
) -> None:
    """A handler runs on when a newcomer joins, for longer than the rebalance timeout: the group goes on without it."""
    *others, newcomer = scene.names
    for name in others:
        scene.joins(library, name, session_ms=session_ms, poll_ms=poll_ms, **options)
    scene.gathers(*others)
    slow = scene.members[-1]
    slow.command("linger", ms=linger_ms)
    scene.run.session_ms, scene.run.victims = max(poll_ms, session_ms), [slow.name]
    scene.now_ready()
    begun = time.time_ns()
    scene.joins(library, newcomer, session_ms=session_ms, poll_ms=poll_ms, **options)
    time.sleep(linger_ms / 1000)
    did = f"handle for {linger_ms} ms more, of a rebalance timeout of {poll_ms} ms"
    scene.run.acts.append(Act(begun, did, slow.name, time.time_ns()))
    slow.send("linger", ms=0)  # a library of one thread answers when it has given up
    scene.waits(lambda: slow.has_answered("linger"), "it still handles")
    scene.gathers(*scene.names)
    time.sleep(2)
    scene.goes_home()


def blocks_its_loop(
    scene: Scene, library: str, session_ms: int, stall_ms: int, blocks: bool, times: int = 1, **options: Any
) -> None:
    """A handler of KafkaJS takes long: no heartbeats are sent meanwhile.

    :param blocks: whether it blocks the event loop, or only waits for something else
    """
    victim = gather(scene, library, session_ms, **options)
    scene.run.victims = [victim.name]
    for _ in range(times):
        with scene.doing("block the event loop" if blocks else "wait in eachMessage", victim.name):
            victim.command("stall", ms=stall_ms, blocks=blocks)
            if not blocks:
                time.sleep(stall_ms / 1000)
        time.sleep(1)
        scene.gathers(*scene.names)
    scene.goes_home()


def polls_late_in_turn(
    scene: Scene, library: str, poll_ms: int, stall_ms: int, rounds: int = 1, **options: Any
) -> None:
    """The applications of all members need longer than max.poll.interval.ms, one after the other."""
    for name in scene.names:  # librdkafka refuses a session longer than the time between polls
        scene.joins(library, name, session_ms=poll_ms, poll_ms=poll_ms, **options)
    scene.gathers(*scene.names)
    scene.run.session_ms, scene.run.victims = poll_ms, list(scene.names)
    scene.now_ready()
    for _ in range(rounds):
        for member in scene.members:
            with scene.doing("stall", member.name):
                member.command("stall", ms=stall_ms)
            time.sleep(1)
    scene.gathers(*scene.names)
    scene.goes_home()
