"""What is done to the network of one client while its process runs on: packets lost by chance, connections dropped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from tests.incidents.hall import Scene
from tests.incidents.scenes import gather
from tests.support.clients.members import Member

_ESTABLISHED: Final = "01"
"""The state of a connection in /proc/PID/net/tcp (proc(5))."""
_TIMEOUTS: Final = {
    "confluent": ("socket_timeout_ms",),
    "java": ("request_timeout_ms", "default_api_timeout_ms"),
    "aiokafka": ("request_timeout_ms",),
}
"""Options of the time after which a client gives an answer up, and the connection with it."""


def loses_packets(scene: Scene, library: str, session_ms: int, share: float, lasts_ms: int, **options: Any) -> None:
    """The network loses many of the packets from and to one client for a time."""
    assert scene.pods is not None
    victim = gather(scene, library, session_ms, **options)
    scene.run.victims = [victim.name]
    with scene.doing(f"lose {share:.0%} of its packets", victim.name):
        scene.pods.lose(scene.pod(victim.name), share)
        time.sleep(lasts_ms / 1000)
        scene.pods.lose_no_more(scene.pod(victim.name))
    _is_together_again(scene)


def loses_its_connections(
    scene: Scene, library: str, session_ms: int, timeout_ms: int, before_ms: int = 0, **options: Any
) -> None:
    """The connections that a client has carry nothing any more, as after a NAT has lost its table; new ones work.

    :param timeout_ms: after which the client gives an answer up and connects anew
    """
    assert scene.pods is not None
    victim = gather(scene, library, session_ms, **dict.fromkeys(_TIMEOUTS[library], timeout_ms), **options)
    scene.run.victims = [victim.name]
    time.sleep(before_ms / 1000)
    ports = _ports_of(victim)
    assert ports, "it has no connection"
    with scene.doing(f"drop all of its {len(ports)} connections", victim.name):
        scene.pods.drop(scene.pod(victim.name), ports)
        time.sleep((session_ms + timeout_ms) / 1000)
        scene.waits(lambda: scene.has(*scene.names), "it is not back")
    _is_together_again(scene)


def _is_together_again(scene: Scene) -> None:
    time.sleep(3)
    scene.waits(lambda: scene.has(*scene.names), "it is not back")
    time.sleep(2)
    scene.goes_home()


def _ports_of(member: Member) -> list[int]:
    """The ports of the connections that a member's host has."""
    files = [Path(f"/proc/{member.pid}/net/{name}") for name in ("tcp", "tcp6")]  # Java's sockets are of IPv6
    rows = (row.split() for file in files for row in file.read_text().splitlines()[1:])
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _ESTABLISHED]
