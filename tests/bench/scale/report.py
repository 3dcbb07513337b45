"""Markdown of what was measured: `markdown` all, `summary` for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from ..runner import conditions, missed, shown, table, verdicts

RESULTS = Path(__file__).parent / "results"
BYTES_A_MEMBER = 20_000
TIMES_THE_BASELINE = 1.5  # what the large group may take of Kafka's time for the smaller one
TIMES_THE_FLOOR = 1.3  # processor time of a heartbeat
NOTES = """\
One run, one server after the other, each in its own process on one core; the load comes from another core, by
one thread with a connection for each member. The load knows no TLS and speaks the newest versions that all three
have and that are not flexible (JoinGroup 5, SyncGroup 3, Heartbeat 3, LeaveGroup 1).

* **ours**: `kcoord serve --data-dir`, every generation on disk (fsync) before anybody gets its assignment.
* **Apache Kafka**: one KRaft node with Kafka's own JVM settings (G1, 1 GiB heap, both compilers) and the new group
  coordinator (`group.coordinator.rebalance.protocols=classic,consumer`); its log is written, not synced, as Kafka
  does.
* **librdkafka's mock cluster** (`test.mock.num.brokers`) is C and keeps nothing on disk. Its rebalances end when a
  timer does (3 s, or the session timeout less one second), so only its heartbeats are compared. It has the members of
  the baseline, in one group and in groups of ten: more may not join within 3 s, and each makes its heartbeats slower.
* The group of the baseline is measured first, in the same process: what more members cost.
* Initial rebalance delay is 0 in ours and in Kafka. Before anything is measured, everything is done once in the
  same process at full size, heartbeats included, as a warm-up; the memory is taken in there, when the process is
  fresh.
* **form**: all others have sent JoinGroup and the server has come to rest; then the leader's JoinGroup is sent, the
  last of all: from there to the last answer to SyncGroup. **rejoin**: the same with a member of a standing group as
  the last.
* **one leaves**: from its LeaveGroup, over everybody's heartbeat that says REBALANCE_IN_PROGRESS (27), JoinGroup
  and SyncGroup, to the last answer. **one joins**: the same from a new member's JoinGroup. In the groups of ten it
  is one in each at once. Medians; in brackets the worst.
* **heartbeats**: closed loop, the next leaves when the answer is there, on every connection: the most that the
  server can do; p50 and p99 are then mostly queueing. Per second of the server's processor time it is the same
  on a quiet machine, and comparable on a busy one. **paced**: each member every 3 s, as clients do by default,
  timed from when it was due.
* **a member**: processor time of the server's process in the whole rebalance, until it rests, by members; and of the
  load, which is Python too: where it takes longer than the server, the times of a rebalance are the load's.
* **the floor**: a protocol of uvloop, our event loop, that answers each read with 14 bytes and looks at nothing.
* **memory**: growth of the process from its start to the group being Stable, connections included, by member;
  resident (RSS) and proportional (PSS). The JVM's holds garbage too.
"""


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms" if value >= 0.0095 else f"{1e3 * value:.2f} ms"


def medians(values: list[float]) -> str:
    return f"{seconds(median(values))} ({seconds(max(values))})"


class Report:
    """What latest.json holds."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self.servers: dict[str, dict[str, Any]] = report["servers"]
        self.plan: dict[str, Any] = report["plan"]

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """A label, and a cell for each server."""
        plan = self.plan
        kinds = (
            ("baseline", f"{plan['baseline']:,} members in one group"),
            ("large", f"{plan['members']:,} members in one group"),
            ("small", f"{plan['groups']:,} groups of {plan['size']}"),
        )
        for kind, what in kinds:
            yield f"{what}: form", [self.of(each, kind, "form") for each in self.servers]
            for key, label in (("rejoin", "rejoin"), ("leave_one", "one leaves"), ("join_one", "one joins")):
                yield f"{what}: {label}", [self.of(each, kind, key) for each in self.servers]
            if kind == "baseline":
                continue
            yield f"{what}: heartbeats/s", [self.rate(each, kind, "rate") for each in self.servers]
            label = f"{what}: heartbeats per second of processor time"
            yield label, [self.rate(each, kind, "per_cpu") for each in self.servers]
            yield f"{what}: heartbeats, p50 / p99", [self.latency(each, kind, "beats") for each in self.servers]
            yield f"{what}: paced, p50 / p99", [self.latency(each, kind, "paced") for each in self.servers]
        yield "memory a member, RSS / PSS", [self.memory(each) for each in self.servers]

    def of(self, server: str, kind: str, key: str) -> str:
        if self.servers[server]["timers"]:
            return "(timers)"
        value = self.servers[server][kind][key]
        text = medians(value) if isinstance(value, list) else seconds(value)
        used = self.servers[server][kind].get("cpu", {}).get(key)
        return text if used is None else f"{text}, {1e6 * median(used):.0f} µs a member"

    def load(self, kind: str) -> Iterator[str]:
        """The load's processor time for a member, of forming and of rejoining; of the first server that has them."""
        for each in self.servers.values():
            used = each.get(kind, {}).get("load", {})
            if "rejoin" in used:
                yield f"{1e6 * median(used['form']):.0f} / {1e6 * median(used['rejoin']):.0f} µs"
                return

    def rate(self, server: str, kind: str, key: str) -> str:
        return f"{self.servers[server][kind]['beats'][key]:,.0f}{self.fewer(server)}"

    def fewer(self, server: str) -> str:
        """How many members there are where they are the baseline's."""
        return f" ({self.plan['baseline']:,} members)" if self.servers[server]["timers"] else ""

    def latency(self, server: str, kind: str, how: str) -> str:
        beats = self.servers[server][kind][how]
        late = f", {beats['skipped']:,} not sent" if beats["skipped"] else ""
        return f"{seconds(beats['p50'])} / {seconds(beats['p99'])}{late}{self.fewer(server)}"

    def memory(self, server: str) -> str:
        memory = self.servers[server]["memory"]
        return f"{memory['rss'] / 1e3:.1f} / {memory['pss'] / 1e3:.1f} KB"

    def targets(self) -> Iterator[tuple[str, bool, str]]:
        """Each target, whether it is met, and the figures; nothing where ours was not measured."""
        servers, ours = self.servers, self.servers.get("ours")
        if ours is None:
            return
        members = f"{self.plan['members']:,} members"
        small = f"{self.plan['groups']:,} groups of {self.plan['size']}"
        if "kafka" in servers:
            joined = (
                ("form", "once all have joined"),
                ("rejoin", "once all have rejoined"),
                ("leave_one", "after one left"),
            )
            for key, what in joined:
                mine, theirs = (_middle(servers[each]["large"][key]) for each in ("ours", "kafka"))
                figures = f"{seconds(mine)} against {seconds(theirs)}"
                yield f"{members} Stable {what} in at most Kafka's time", mine <= theirs, figures
            mine, theirs = servers["ours"]["large"]["form"], servers["kafka"]["baseline"]["form"]
            times = f"{TIMES_THE_BASELINE} times Kafka's time for {self.plan['baseline']:,}"
            figures = f"{seconds(mine)} against {seconds(theirs)}, {mine / theirs:.2f} times"
            yield f"{members} Stable once all have joined in {times}", mine <= TIMES_THE_BASELINE * theirs, figures
        for peer, name in (("kafka", "Kafka"), ("mock", "the mock cluster")):
            for kind, what in (("large", members), ("small", small)) if peer in servers else ():
                mine, theirs = (servers[each][kind]["beats"]["rate"] for each in ("ours", peer))
                figures = f"{mine:,.0f}/s against {theirs:,.0f}/s{self.fewer(peer)}"
                yield f"more heartbeats than {name}, {what}", mine > theirs, figures
        if "floor" in self.report:
            least = self.report["floor"]["beats"]["per_cpu"]
            for kind, what in (("large", members), ("small", small)):
                mine = ours[kind]["beats"]["per_cpu"]
                figures = f"{mine:,.0f} against {least:,.0f} per second of processor time, {least / mine:.2f} times"
                text = f"a heartbeat in at most {TIMES_THE_FLOOR} times the floor's processor time, {what}"
                yield text, least <= TIMES_THE_FLOOR * mine, figures
        yield (
            f"under {BYTES_A_MEMBER // 1000} KB a member",
            ours["memory"]["rss"] < BYTES_A_MEMBER,
            f"{shown(ours['memory']['rss'] / 1e3, BYTES_A_MEMBER / 1e3)} KB",
        )

    def beside(self) -> list[str]:
        """What was measured besides the servers: lines, the last of them empty."""
        lines = []
        if "floor" in self.report:
            lines.append(
                f"The floor: {self.report['floor']['beats']['per_cpu']:,.0f} heartbeats per second of processor time."
            )
        for kind, what in (("large", "one group"), ("small", f"groups of {self.plan['size']}")):
            for used in self.load(kind):
                lines.append(f"The load itself, a member of {what}, form / rejoin: {used} of processor time.")
        return [*lines, ""] if lines else []

    def table(self) -> Iterator[str]:
        heads = [f"{each['title']} {each['version']}" for each in self.servers.values()]
        return table(["", *heads], ([label, *cells] for label, cells in self.rows()))

    def conditions(self) -> str:
        report, wanted = self.report, self.report["wanted"]
        more = ["server and load on a core each"] if report["pinned"] else []
        if any(self.plan[key] < wanted[key] for key in wanted):
            more.append(f"the system's file descriptors are too few for {wanted['members']:,} members")
        return conditions(report, *more)


def _middle(value: float | list[float]) -> float:
    return median(value) if isinstance(value, list) else value


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    made = Report(report)
    parts = ["# Scale", "", f"{made.conditions()}.", "", NOTES, *made.table(), "", *made.beside(), "## Targets", ""]
    return "\n".join([*parts, *verdicts(made.targets()), ""])


def summary(report: dict[str, Any]) -> str:
    """The section of docs/benchmarks.md."""
    made = Report(report)
    parts = [
        "All three get the same load in one run; the coordinator has one core, the load another. Medians, the worst in",
        "brackets; the mock cluster's rebalances end by timers and are not compared.",
        f"{made.conditions()}.",
        "",
        *made.table(),
        "",
        *made.beside(),
    ]
    return "\n".join(
        [*parts, *missed(made.targets()), "", "[How, and all targets](../tests/bench/scale/results/latest.md)."]
    )
