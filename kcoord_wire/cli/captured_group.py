"""A group of a capture as the workload of a simulation: what was observed, and what had to be assumed.

Law: every field of the workload has an origin that is shown: observed in the source, given by an option, or assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.cli.output import print_table, styled, table

if TYPE_CHECKING:
    from kcoord_wire.forensics.group_shape import Fact
    from kcoord_wire.worlds.group.rolling_bounce import BounceWorkload

_CLIENTS: Final = {"Java": "java"}  # libraries whose names differ from those of `CLIENT_VERSIONS`
_ASSUMED: Final = {
    "revoke_ms": "no member gave up partitions for a rebalance in it",
    "assign_ms": "offsets are fetched at once, so that nothing shows how long partitions take to open; as for closing",
    "poll_ms": "part of the time to close partitions",
    "down_ms": "no member left and came back",
    "heartbeat_interval_ms": "no two heartbeats of a member are in it",
    "client": "the library is not known",
    "rate_per_s": "not looked for",
    "capacity_per_s": "twice the share of an instance",
    "interval_ms": "the next instance stops when the group has settled",
    "opens_aside": "not visible from outside",
}


class Origin(NamedTuple):
    """Where a field of the workload is from.

    :ivar name: of the field
    :ivar value: its value
    :ivar origin: ``observed``, ``given`` or ``assumed``
    :ivar why: what it was observed in, or why it was assumed
    """

    name: str
    value: Any
    origin: str
    why: str


@dataclass(frozen=True, slots=True)
class CapturedGroup:
    """A group as its capture shows it.

    :ivar group_id: its name
    :ivar protocol: the protocol of the simulation that is nearest to its own
    :ivar assignor: the assignor that was chosen
    :ivar facts: what was observed, by name
    :ivar fields: the fields of a workload that follow from that
    """

    group_id: str
    protocol: str
    assignor: str
    facts: Mapping[str, Fact]
    fields: dict[str, Any]

    def origins(self, workload: BounceWorkload, given: Mapping[str, Any]) -> list[Origin]:
        """Return the origin of each field of the workload."""
        found = []
        for name, value in asdict(workload).items():
            fact = self.facts.get("library" if name == "client" else name)
            if name in given:
                found.append(Origin(name, value, "given", "an option"))
            elif fact is not None and name in self.fields:
                idle = f"; of {fact.value} some are idle" if name == "members" and fact.value != value else ""
                found.append(Origin(name, value, "observed", fact.source + idle))
            else:
                found.append(Origin(name, value, "assumed", _ASSUMED.get(name, "not in it")))
        return found


def captured_group(sources: Sequence[str], group_id: str | None, ports: Sequence[int] | None) -> CapturedGroup:
    """Return the group of captures and recordings.

    :param group_id: None if there is one group
    :raises ValueError: there is no such group, several, or none that a rebalance can be simulated for
    :raises OSError: a source cannot be read
    """
    from kcoord_wire.forensics import analyze
    from kcoord_wire.forensics.group_shape import shape_of

    shapes: dict[str, list[Fact]] = {}
    analyze(
        sources,
        ports=ports,
        groups=None if group_id is None else [group_id],
        look=lambda history, exchanges: shapes.update({history.group.group_id: shape_of(history, exchanges)}),
    )
    where = ", ".join(sources)
    if not shapes:
        raise ValueError(f"no consumer group{f' called {group_id}' if group_id else ''} on the wire is in {where}")
    if len(shapes) > 1:
        raise ValueError(f"several groups are in {where}: choose one with --group: {', '.join(sorted(shapes))}")
    ((name, shape),) = shapes.items()
    facts = {fact.name: fact for fact in shape}
    if "members" not in facts or not facts["topics"].value:
        raise ValueError(f"{where} shows no complete rebalance of group {name} in the classic protocol")
    return CapturedGroup(name, _protocol(facts), facts["assignor"].value, facts, _fields(facts))


def _protocol(facts: Mapping[str, Fact]) -> str:
    def holds(name: str) -> bool:
        return name in facts and bool(facts[name].value)

    if holds("is_static"):
        return "static"
    if holds("is_cooperative"):
        return "cooperative"
    return "sticky" if facts["assignor"].value == "sticky" else "eager"


def _fields(facts: Mapping[str, Fact]) -> dict[str, Any]:
    from kcoord_wire.consumer.events import CLIENT_VERSIONS
    from kcoord_wire.worlds.group.rolling_bounce import BounceWorkload

    known = BounceWorkload.__dataclass_fields__
    fields = {name: fact.value for name, fact in facts.items() if name in known}
    fields["members"] = min(fields["members"], sum(fields["topics"].values()))
    library = facts["library"].value if "library" in facts else ""
    if (client := _CLIENTS.get(library, library)) in CLIENT_VERSIONS:
        fields["client"] = client
    fields.setdefault("assign_ms", fields.get("revoke_ms", BounceWorkload.assign_ms))
    fields.setdefault("poll_ms", 0)
    return fields


def print_origins(group: CapturedGroup, origins: Sequence[Origin]) -> None:
    """Print where each field is from."""
    made = table(f"Group {group.group_id}: {group.protocol}, {group.assignor}", "what", "value", "", "why")
    for name, value, origin, why in origins:
        text = ", ".join(f"{topic} ({count})" for topic, count in value.items()) if name == "topics" else str(value)
        made.add_row(*map(styled, (name, text, origin, why)))
    print_table(made)
