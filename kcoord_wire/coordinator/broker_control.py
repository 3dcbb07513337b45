"""What happens to the brokers of a running `Coordinator`, and who coordinates and leads what.

Laws:

* A method returns when what it asks for has happened: a group that has moved is served by its new coordinator, and a
  broker that was stopped refuses connections.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from kcoord_wire.coordinator.core.brokers import NO_LEADER

if TYPE_CHECKING:
    from kcoord_wire.coordinator.server import Server

T = TypeVar("T")


class BrokerControl:
    """The part of `Coordinator` about its brokers. Its methods may be called from any thread but its own."""

    def _call(self, what: Callable[[Server], T]) -> T:
        """Call `what` in the thread of the loop, which owns the server."""
        raise NotImplementedError

    def _run(self, what: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the server in its loop."""
        raise NotImplementedError

    @property
    def brokers(self) -> list[str]:
        """What each broker does, by node id: ``running``, ``paused`` or ``stopped``."""
        return self._call(lambda server: [str(state) for state in server.cluster.states])

    def coordinator_of(self, group: str) -> int:
        """Return the node id of the broker that coordinates a group; -1 if none runs."""
        endpoint = self._call(lambda server: server.cluster.brokers.coordinator_of_group(group))
        return NO_LEADER if endpoint is None else endpoint.node_id

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the node id of the broker that leads a partition; -1 if none runs.

        :raises KeyError: the topic or the partition does not exist
        """
        found = self._call(lambda server: server.requests.topics.catalog.named(topic))
        if found is None or not 0 <= partition < len(found.leaders.of):
            raise KeyError(f"{topic}-{partition}")
        return found.leaders.of[partition]

    def move_coordinator(self, group: str, to: int) -> None:
        """Let a broker coordinate a group from now on, with all groups of the same partition of
        ``__consumer_offsets``. Members find it by themselves.

        :param to: its node id
        :raises ValueError: there is no such broker, or it does not run
        """
        self._run(lambda server: server.cluster.move_coordinator(group, to))

    def stop_broker(self, node: int) -> None:
        """Stop a broker: the others lead its partitions and coordinate its groups, its connections are closed, and
        later ones refused. One that is stopped stays so.

        :raises ValueError: there is no such broker
        """
        self._run(lambda server: server.cluster.stop(node))

    def restart_broker(self, node: int) -> None:
        """Start a stopped broker again, at its port; one that runs is stopped before. It leads what it led.

        :raises ValueError: there is no such broker
        :raises OSError: another program has taken its port
        """
        self._run(lambda server: server.cluster.restart(node))

    def pause_broker(self, node: int, failover_ms: int | None = None) -> None:
        """Pause a broker, like SIGSTOP: clients may connect, and nothing is read or answered. One that does not run
        stays as it is.

        :param failover_ms: what it leads moves to others after so long, as after Kafka's
            ``broker.session.timeout.ms``; None leaves it there
        :raises ValueError: there is no such broker
        """
        self._call(lambda server: server.cluster.pause(node, failover_ms))

    def resume_broker(self, node: int) -> None:
        """Let a paused broker go on; it leads what it led. One that is not paused stays as it is.

        :raises ValueError: there is no such broker
        """
        self._run(lambda server: server.cluster.resume(node))
