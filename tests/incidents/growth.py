"""What is done to the size and the places of a group: an autoscaler, an instance that is there twice, slow leaving."""

from __future__ import annotations

import time
from typing import Any

from tests.incidents.hall import Scene
from tests.incidents.labels import Act
from tests.incidents.scenes import LONG_SESSION_MS, gather


def is_scaled(
    scene: Scene,
    library: str,
    rounds: int,
    more: int,
    stays_ms: int,
    session_ms: int = 20_000,
    **options: Any,
) -> None:
    """An autoscaler adds members and takes them away, again and again; the others stay."""
    gather(scene, library, session_ms, **options)
    stem, scene.run.victims = scene.names[-1].rstrip("0123456789"), list(scene.names)
    number = len(scene.names)
    for _ in range(rounds):
        added = [f"{stem}{number + each}" for each in range(1, more + 1)]
        number += more
        with scene.doing(f"scale from {len(scene.names)} to {len(scene.names) + more} and back", scene.name):
            fresh = [scene.joins(library, name, session_ms=session_ms, **options) for name in added]
            scene.waits(lambda added=added: scene.has(*scene.names, *added), "they are not in")
            time.sleep(stays_ms / 1000)
            for member in reversed(fresh):
                member.leave()
                member.kill()
            scene.waits(lambda: scene.has(*scene.names), "they are not gone")
        scene.run.victims += added
        time.sleep(stays_ms / 1000)
    scene.goes_home()


def is_there_twice(scene: Scene, library: str, restarts: int, waits_ms: int, **options: Any) -> None:
    """A second process with the group.instance.id of a member of KIP-848 is refused; a supervisor starts it again."""
    *others, name = scene.names
    for other in others:
        scene.joins(library, other, **options)
    scene.joins(library, name, static=True, **options)
    scene.gathers(*scene.names)
    scene.run.victims = [name]
    scene.now_ready()
    for _ in range(restarts + 1):
        scene.did("a second process with its group.instance.id", name)
        second = scene.joins(library, name, static=True, **options)
        scene.waits(lambda second=second: bool(second.complaints), "it was not refused")
        time.sleep(waits_ms / 1000)
        second.kill()
    scene.goes_home()


def gives_up_slowly(
    scene: Scene,
    library: str,
    linger_ms: int,
    poll_ms: int,
    session_ms: int = 10_000,
    by_pattern: bool = False,
    **options: Any,
) -> None:
    """A member takes its time to give partitions up when another one joins, in time or not.

    :param by_pattern: whether members subscribe to a pattern, which the broker matches
    """
    if by_pattern:
        options["topic"] = scene.pattern
    *others, newcomer = scene.names
    for name in others:
        scene.joins(library, name, session_ms=session_ms, poll_ms=poll_ms, **options)
    scene.gathers(*others)
    slow = list(scene.members)
    before = {member.name: member.now_owned for member in slow}
    for member in slow:
        member.command("linger", ms=linger_ms)
    scene.run.session_ms = poll_ms
    scene.now_ready()
    begun = time.time_ns()
    scene.joins(library, newcomer, session_ms=session_ms, poll_ms=LONG_SESSION_MS, **options)
    scene.waits(lambda: any(member.now_owned != before[member.name] for member in slow), "they give nothing up")
    scene.run.victims = [member.name for member in slow if member.now_owned != before[member.name]]
    for name in scene.run.victims:
        did = f"take {linger_ms} ms to give up partitions, of {poll_ms} ms"
        scene.run.acts.append(Act(begun, did, name, time.time_ns()))
    for member in slow:
        member.command("linger", ms=0)
    scene.gathers(*scene.names)
    time.sleep(2)
    scene.goes_home()


def beats_too_rarely(scene: Scene, library: str, session_ms: int, beats_ms: int, lives_ms: int, **options: Any) -> None:
    """A member's heartbeat interval is hardly shorter than its session timeout."""
    *others, name = scene.names
    for other in others:
        scene.joins(library, other, session_ms=LONG_SESSION_MS, **options)
    scene.gathers(*others)
    scene.run.session_ms, scene.run.victims = session_ms, [name]
    scene.now_ready()
    with scene.doing(f"heartbeats every {beats_ms} ms, session {session_ms} ms", name):
        scene.joins(library, name, session_ms=session_ms, beats_ms=beats_ms, **options)
        time.sleep(lives_ms / 1000)
    scene.goes_home()
