"""The tables of one group while its lines are read.

Law: a member is known from the first line that names it to the line that says that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import HistoryBuilder, state_intervals
from kcoord_wire.forensics.lines.extraction import client_of
from kcoord_wire.forensics.model import Evidence, Identity, LogLine, MemberLife, Rebalance, RemovedMember, StateInterval

_SHOWN: Final = 300
_LEAVES: Final = (Cause.MEMBER_LEFT, Cause.POLL_TIMEOUT)


def evidence_of(row: LogLine) -> Evidence:
    """Return a line as evidence: the number is its byte in the source."""
    text = row.text if len(row.text) <= _SHOWN else f"{row.text[:_SHOWN]} ..."
    who = row.program if row.client_id is None or row.program == "broker" else f"{row.program} {row.client_id}"
    return Evidence(row.time_ns, row.source, row.position, f"{who}: {text}")


class GroupTables(HistoryBuilder):
    """The tables of one group, complete when its lines have been read in order of time.

    :ivar protocol: of its members, ``classic`` or ``consumer``
    :ivar size: how many members the group has, as the last line that says it
    """

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.protocol = "classic"
        self.size = 0
        self._gone: list[RemovedMember] = []

    @property
    def states(self) -> list[StateInterval]:
        """The states so far. The times of lines are coarse: a state that seems to have no length was one."""
        return state_intervals(self.group_id, self._states, has_moments=True)

    def begin(
        self,
        row: LogLine,
        cause: Cause,
        confidence: float,
        trigger: Identity,
        reason: str | None,
        detail: str,
        evidence: Iterable[Evidence],
    ) -> Rebalance:
        """Begin a rebalance; one that is under way is cut off."""
        gone, self._gone = self._gone, []
        return self.open(
            row.time_ns,
            generation_id=None,
            cause=cause,
            confidence=confidence,
            trigger=trigger,
            reason=reason,
            detail=detail,
            evidence=list(evidence),
            members_before=self.size,
            removed=gone,
        )

    def meet(self, member_id: str, row: LogLine) -> MemberLife:
        """Return the life of a member that a line names; it begins here if the member was not known."""
        life = self.members.get(member_id)
        if life is None:
            client_id = row.client_id or client_of(member_id)
            life = MemberLife(
                group_id=self.group_id,
                member_id=member_id,
                instance_id=row.instance_id,
                client_id=client_id,
                client_host=row.client_host,
                joined_ns=row.time_ns,
                last_seen_ns=row.time_ns,
                first_generation_id=row.generation_id,
                protocol=self.protocol,
            )
            self.members[member_id] = life
            self.lives.append(life)
        life.last_seen_ns = max(life.last_seen_ns, row.time_ns)
        life.instance_id = life.instance_id or row.instance_id
        life.client_id = life.client_id or row.client_id
        life.client_host = life.client_host or row.client_host
        life.session_timeout_ms = life.session_timeout_ms or row.timeout_ms
        return life

    def find(self, member_id: str) -> MemberLife | None:
        """Return the last life of a member id, also one that has ended."""
        return next((life for life in reversed(self.lives) if life.member_id == member_id), None)

    def part(self, member_id: str, row: LogLine, why: str) -> None:
        """Note that a member is gone."""
        life = self.meet(member_id, row)
        self.members.pop(member_id)
        life.left_ns, life.why_left = row.time_ns, why
        gone = RemovedMember(member_id, life.client_id, life.client_host, why)
        last = self.rebalances[-1] if self.rebalances else None
        if last is not None and last.cause in _LEAVES and last.member_id == member_id and not last.removed:
            last.removed.append(gone)  # a broker before 4.0 says so behind the rebalance that follows from it
        elif self.current is None or self.protocol == "consumer":  # an epoch begins behind who is gone
            self._gone.append(gone)
        else:
            self.current.removed.append(gone)

    def name_clients(self, clients: Mapping[str, str]) -> None:
        """Give the members the client ids that lines of clients show, by member id."""
        for life in self.lives:
            life.client_id = life.client_id or clients.get(life.member_id)
        names = {life.member_id: life for life in self.lives}
        for rebalance in self.rebalances:
            if named := names.get(rebalance.member_id or ""):
                rebalance.client_id = rebalance.client_id or named.client_id
                rebalance.client_host = rebalance.client_host or named.client_host
                rebalance.instance_id = rebalance.instance_id or named.instance_id
            for gone in rebalance.removed:
                gone.client_id = gone.client_id or clients.get(gone.member_id)
