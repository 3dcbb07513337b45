"""Share sessions: which partitions a member fetches, so that its requests name changes only (KIP-932).

Laws:

* A member of a group has one session at most. Each request of it names the next epoch, 1, 2, 3 ...; 0 opens a session
  in place of the one that there is, -1 closes it.
* A session is one broker's, and belongs to the connection that has opened it, with which it ends.
* A broker has a bounded number of sessions.

Source: Kafka's `ShareSession.java`, `ShareSessionCache.java`, `ShareRequestMetadata.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.protocol.error_codes import ErrorCode

OPENS: Final = 0
CLOSES: Final = -1
"""The epochs that open and close a session."""

_GREATEST: Final = (1 << 31) - 1

Partition = tuple[uuid.UUID, int]
"""Id of the topic, and number."""


@dataclass(slots=True, eq=False)
class Session:
    """A share session.

    :ivar broker: the broker
    :ivar group_id: the group
    :ivar member_id: the member
    :ivar connection: that has opened it
    :ivar partitions: that the member fetches; for each whether the next answer names it whatever there is
    :ivar epoch: that the next request has to name
    """

    broker: int
    group_id: str
    member_id: str
    connection: int
    partitions: dict[Partition, bool]
    epoch: int = 1

    @property
    def key(self) -> tuple[int, str, str]:
        """What no other session has."""
        return self.broker, self.group_id, self.member_id

    def update(self, added: Iterable[Partition], forgotten: Iterable[Partition]) -> None:
        """Take in what a request changes."""
        for partition in added:
            self.partitions.setdefault(partition, True)
        for partition in forgotten:
            self.partitions.pop(partition, None)


class Sessions:
    """The share sessions of a broker."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[int, str, str], Session] = {}
        self._by_connection: dict[int, set[Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session: Session, most: int) -> None:
        """Add a session in place of the member's former one.

        :raises Refused: SHARE_SESSION_LIMIT_REACHED, its broker has `most` already
        """
        if (before := self._sessions.get(session.key)) is not None:
            self.close(before)
        if sum(broker == session.broker for broker, _, _ in self._sessions) >= most:
            raise Refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self._sessions[session.key] = session
        self._by_connection.setdefault(session.connection, set()).add(session)

    def find(self, key: tuple[int, str, str], epoch: int) -> Session:
        """Return a session, and count its epoch on unless that closes it.

        :param key: broker, group, member
        :raises Refused: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH
        """
        session = self._sessions.get(key)
        if session is None:
            raise Refused(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != CLOSES:
            if session.epoch != epoch:
                raise Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            session.epoch = 1 if epoch == _GREATEST else epoch + 1
        return session

    def close(self, session: Session) -> None:
        """Remove a session."""
        del self._sessions[session.key]
        opened = self._by_connection[session.connection]
        opened.discard(session)
        if not opened:
            del self._by_connection[session.connection]

    def of_connection(self, connection: int) -> list[Session]:
        """Return the sessions that a connection has opened."""
        return list(self._by_connection.get(connection, ()))

    def clear(self) -> None:
        """Remove all sessions."""
        self._sessions.clear()
        self._by_connection.clear()
