"""`kcoord simulate rolling-bounce`: what a deploy that restarts one instance after the other would cost a group, also
one that a capture shows.

Laws:

* The same arguments give the same output on every machine.
* The table and the JSON object have the same results; notes about what was assumed go to stderr.
* Every field of a workload that is from a capture has an origin that is shown: observed in the source, given by an
  option, or assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from kcoord_wire.cli.options import (
    CapturedPorts,
    Command,
    Format,
    Option,
    Plots,
    Positive,
    UsageError,
    decimal,
    whole,
)
from kcoord_wire.cli.output import complain, print_json, print_table, styled, table

if TYPE_CHECKING:
    from kcoord_wire.forensics.group_shape import Fact
    from kcoord_wire.report.page.charts import LinePlot
    from kcoord_wire.worlds.consumer_groups.rolling_bounce import BounceResult, BounceWorkload

PROTOCOLS: Final = ("eager", "sticky", "cooperative", "static", "consumer")
TOPIC: Final = "events"
_MOST: Final = (1 << 31) - 1  # of Kafka's settings in ms

Millis: TypeAlias = Annotated[int, whole(0, _MOST)]
Rate: TypeAlias = Annotated[float, decimal("a number above 0", lambda rate: 0 < rate < 1e12)]


def _topic(text: str) -> tuple[str, int]:
    topic, equals, count = text.rpartition("=")
    if bool(equals) != bool(topic):
        raise ValueError(f"{text!r} is neither COUNT nor TOPIC=COUNT")
    return topic or TOPIC, whole(1)(count)


@dataclass(frozen=True, kw_only=True)
class RollingBounce(Command):
    """Compute what a rolling restart would cost a group, with eager, cooperative, static and KIP-848 members.

    protocols:
      eager        range: all give up all partitions in every rebalance
      sticky       eager too, but partitions come back to where they were
      cooperative  cooperative-sticky: only what moves is given up
      static       range with group.instance.id: a restart within the session timeout is no rebalance
      consumer     group.protocol=consumer (KIP-848): the coordinator assigns, members give up what moves one by one

    examples:
      kcoord simulate rolling-bounce --members 10 --partitions 200
          all protocols beside each other
      kcoord simulate rolling-bounce --partitions orders=120 --partitions clicks=60 --assign-ms 500 --aside
          state stores of half a second each, restored beside the work as Kafka Streams does
      kcoord simulate rolling-bounce --aside --restore-ms 5000 --store memory --standbys 1 --warm-up
          stores that have to be restored after a restart, with copies that are kept or made beside the work
      kcoord simulate rolling-bounce --protocol cooperative --format json --plot deploy.svg
          one protocol, as JSON, and its throughput over time as a plot
      kcoord simulate rolling-bounce --from trace.pcap --group billing --down-ms 8000
          a group as a capture shows it, and what its deploy would cost with each protocol
    """

    members: Annotated[Positive | None, Option("instances (default: 10)", "N")] = None
    partitions: Annotated[
        tuple[Annotated[tuple[str, int], _topic], ...],
        Option("of a topic; may be repeated (default: 200)", "[TOPIC=]COUNT"),
    ] = ()
    from_: Annotated[
        tuple[str, ...],
        Option(
            "a capture, a recording or a folder of them: members, partitions, timeouts and times of revocations are "
            "those of the group in it, as far as no option says otherwise; may be repeated",
            "FILE",
        ),
    ] = ()
    group: Annotated[str | None, Option("which group of --from, if there are several", "ID")] = None
    port: CapturedPorts = ()
    protocol: Annotated[
        Literal["eager", "sticky", "cooperative", "static", "consumer", "all"], Option("of the members")
    ] = "all"
    revoke_ms: Annotated[
        Millis | None, Option("time to give up one partition: commit, flush, close its store (default: 50)", "MS")
    ] = None
    assign_ms: Annotated[
        Millis | None, Option("time to open one that was assigned: open and restore its store (default: 150)", "MS")
    ] = None
    restore_ms: Annotated[
        Millis | None,
        Option("time to restore its state besides, where the instance has no copy of it (default: 0)", "MS"),
    ] = None
    store: Annotated[
        Literal["disk", "memory"] | None,
        Option("where copies are: on disk they outlive the process, in memory they end with it (default: disk)"),
    ] = None
    standbys: Annotated[
        Millis | None, Option("so many other instances keep a copy of each partition's state (default: 0)", "N")
    ] = None
    warm_up: Annotated[
        bool, Option("partitions move only to instances that have restored their state beside their work (KIP-441)")
    ] = False
    down_ms: Annotated[
        Millis | None, Option("how long an instance is down between its consumers (default: 5000)", "MS")
    ] = None
    interval_ms: Annotated[
        Millis | None, Option("from one stop to the next (default: when the group has settled)", "MS")
    ] = None
    poll_ms: Annotated[
        Millis | None, Option("longest time that the application works between two polls (default: 100)", "MS")
    ] = None
    session_timeout_ms: Annotated[Millis | None, Option("session.timeout.ms (default: 45000)", "MS")] = None
    heartbeat_interval_ms: Annotated[Millis | None, Option("heartbeat.interval.ms (default: 3000)", "MS")] = None
    max_poll_interval_ms: Annotated[Millis | None, Option("max.poll.interval.ms (default: 300000)", "MS")] = None
    aside: Annotated[
        bool,
        Option("partitions are opened one by one beside the work; else in the listener, while nothing is processed"),
    ] = False
    rate: Annotated[Rate | None, Option("records per second and partition", "N")] = None
    capacity: Annotated[
        Rate | None, Option("records per second that an instance can process (default: twice its share)", "N")
    ] = None
    seed: Annotated[Millis, Option("of latencies and of when instances stop", "N")] = 0
    format: Format = "text"
    plot: Plots = ()

    def __post_init__(self) -> None:
        if not self.from_ and (self.group is not None or self.port):
            raise UsageError("--group and --port belong to --from")
        if len(dict(self.partitions)) < len(self.partitions):
            raise UsageError("--partitions names a topic twice")

    def run(self) -> None:
        """Simulate each protocol and print what it costs.

        :raises ValueError: --from has no such group
        """
        given = self._given()
        group = captured_group(self.from_, self.group, self.port or None) if self.from_ else None
        workload = _workload((group.fields if group else {}) | given)
        names = PROTOCOLS if self.protocol == "all" else (self.protocol,)
        results = [_simulate(workload, name, self.seed) for name in names]
        for path in self.plot:
            from kcoord_wire.report.page.charts import write_plot

            write_plot(throughput_plot(results), path)
        show = _print_as_json if self.format == "json" else _print_as_tables
        show(self.seed, workload, results, group, group.origins(workload, given) if group else [])
        for note in _notes(workload, results):
            complain(note)

    def _given(self) -> dict[str, Any]:
        """Return the fields of the workload that the options set."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name in _WORKLOAD}
        given |= {
            "topics": dict(self.partitions) or None,
            "rebalance_timeout_ms": self.max_poll_interval_ms,
            "rate_per_s": self.rate,
            "capacity_per_s": self.capacity,
            "opens_aside": self.aside or None,
            "warms_up": self.warm_up or None,
        }
        return {name: value for name, value in given.items() if value is not None}


_WORKLOAD: Final = (
    "members",
    "revoke_ms",
    "assign_ms",
    "restore_ms",
    "store",
    "standbys",
    "down_ms",
    "interval_ms",
    "poll_ms",
    "session_timeout_ms",
    "heartbeat_interval_ms",
)
"""Options that are fields of the workload."""


def _workload(fields: Mapping[str, Any]) -> BounceWorkload:
    """The workload with these fields; the capacity of an instance is twice its share if it is not given."""
    from kcoord_wire.worlds.consumer_groups.rolling_bounce import BounceWorkload

    workload = BounceWorkload(**fields)
    if "capacity_per_s" in fields:
        return workload
    return replace(workload, capacity_per_s=2 * workload.rate_per_s * workload.partition_count / workload.members)


def _simulate(workload: BounceWorkload, protocol: str, seed: int) -> BounceResult:
    from kcoord_wire.worlds.consumer_groups.rolling_bounce import simulate_bounce

    return simulate_bounce(workload, protocol, seed)


def _print_as_json(
    seed: int,
    workload: BounceWorkload,
    results: Sequence[BounceResult],
    group: CapturedGroup | None,
    origins: Sequence[Origin],
) -> None:
    found = {"workload": asdict(workload), "seed": seed, "results": [asdict(each) for each in results]}
    if group is not None:
        fields = [origin._asdict() for origin in origins]
        found["from"] = {"group": group.group_id, "protocol": group.protocol, "fields": fields}
    print_json(found)


def _print_as_tables(
    _seed: int,
    workload: BounceWorkload,
    results: Sequence[BounceResult],
    group: CapturedGroup | None,
    origins: Sequence[Origin],
) -> None:
    if group is not None:
        print_origins(group, origins)
    _print_results(workload, results, now=group.protocol if group else "")


def _notes(workload: BounceWorkload, results: Sequence[BounceResult]) -> list[str]:
    """What the user may not expect of the results."""
    notes = []
    share = -(-workload.partition_count // workload.members)
    away = workload.down_ms + share * (workload.revoke_ms)
    if any(result.label == "static" for result in results) and away >= workload.session_timeout_ms:
        notes.append(
            f"static members are away for {away} ms, longer than the session timeout of {workload.session_timeout_ms}: "
            "the group removes them, and rebalances"
        )
    if any(result.caught_up_ms is None for result in results):
        notes.append(f"{workload.capacity_per_s:g} records/s an instance do not suffice to work off the lag")
    return notes


# ---- what is shown


_COLUMNS: Final[Sequence[tuple[str, Callable[[BounceResult], str]]]] = (
    ("protocol", lambda result: result.label),
    ("partitions paused", lambda result: f"{result.pause_partition_ms / 1_000:,.1f} s"),
    ("longest", lambda result: f"{result.longest_pause_ms / 1_000:,.1f} s"),
    ("instances idle", lambda result: f"{result.pause_instance_ms / 1_000:,.1f} s"),
    ("rebalances", lambda result: f"{result.rebalances:,}"),
    ("moves", lambda result: f"{result.moves:,}"),
    ("opened", lambda result: f"{result.opened:,}"),
    ("lowest throughput", lambda result: f"{min(result.throughput):,.0f}/s"),
    ("lag at the end", lambda result: f"{result.lag_records:,.0f}"),
    ("took", lambda result: f"{result.took_ms / 1_000:,.0f} s"),
)


_WHERE: Final = {"disk": "on disk", "memory": "in memory"}


def _print_results(workload: BounceWorkload, results: Sequence[BounceResult], now: str) -> None:
    topics = ", ".join(f"{topic} ({count})" for topic, count in workload.topics.items())
    aside = "beside the work" if workload.opens_aside else "in the listener"
    title = (
        f"Restarting {workload.members} instances one after the other; partitions of {topics}, "
        f"{workload.revoke_ms} ms to close one and {workload.assign_ms} ms to open one {aside}, "
        f"{workload.down_ms / 1_000:g} s down"
    )
    if workload.restore_ms:
        copies = f", {workload.standbys} standbys" if workload.standbys else ""
        copies += ", warm-up" if workload.warms_up else ""
        title += f"; {workload.restore_ms} ms to restore state without a copy, stores {_WHERE[workload.store]}{copies}"
    made = table(title, *(name for name, _ in _COLUMNS), "against eager")
    eager = next((each.pause_partition_ms for each in results if each.label == "eager"), None)
    for result in results:
        ratio = f"1 / {eager / result.pause_partition_ms:.1f}" if eager and result.pause_partition_ms else "-"
        label, *rest = (text(result) for _, text in _COLUMNS)
        made.add_row(styled(f"{label} (now)" if label == now else label), *map(styled, rest), styled(ratio))
    print_table(made)


def throughput_plot(results: Sequence[BounceResult]) -> LinePlot:
    """Throughput per instance over time: the mean of the instances; of one result also the standard deviation."""
    from kcoord_wire.report.page.charts import LinePlot, Series

    series = []
    for result in results:
        rates = list(zip(*(cost.throughput for cost in result.instances.values()), strict=True))
        mean = [(at / 1_000, fmean(each)) for at, each in zip(result.times_ms, rates, strict=True)]
        spread = [(x, max(y - pstdev(each), 0), y + pstdev(each)) for (x, y), each in zip(mean, rates, strict=True)]
        series.append(Series(result.label, mean, spread if len(results) == 1 else []))
    what = f", {results[0].label}: mean and standard deviation" if len(results) == 1 else ""
    return LinePlot(
        title=f"Throughput during a rolling bounce of {len(results[0].instances)} instances{what}",
        x_title="time since the first stop (s)",
        y_title="records/s per instance",
        series=series,
        steps=True,
        width=760,
    )


# ---- the group of a capture

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
    from kcoord_wire.consumer.member_events import CLIENT_VERSIONS
    from kcoord_wire.worlds.consumer_groups.rolling_bounce import BounceWorkload

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
