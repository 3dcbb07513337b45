"""`kcoord central status`: the coordinator, and the groups with their consumers, owners and offsets.

Laws:

* What is in the coordinator's memory alone (consumers, and what a rebalance waits for) is asked of it. If it does not
  answer, the status has the reason, and what ZooKeeper has.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import add_command, argument, parse_seconds
from kcoord_wire.cli.central_serve import parse_auth
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.kernel.net import address_text

if TYPE_CHECKING:
    from kcoord_wire.central.status import ClusterStatus, GroupStatus
    from kcoord_wire.messages import central as m

EXAMPLES: Final = """\
examples:
  kcoord central status --zookeeper zk1:2181,zk2:2181,zk3:2181/kafka
  kcoord central status --zookeeper zk1:2181 --format json | jq .groups
"""
SESSION_TIMEOUT_MS: Final = 6_000


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord central`."""
    about = "the coordinator, the groups, their consumers, owners and offsets, and what each rebalance waits for"
    command = add_command(commands, "status", about, _run, examples=EXAMPLES)
    command.add_argument("--zookeeper", required=True, metavar="HOST:PORT,...[/CHROOT]", help="the ensemble")
    command.add_argument(
        "--zookeeper-auth", type=argument(parse_auth), metavar="USER:PASSWORD", help="digest, where nodes have an ACL"
    )
    command.add_argument(
        "--connect-seconds",
        type=argument(parse_seconds),
        default=15.0,
        metavar="SECONDS",
        help="that ZooKeeper may take to answer (default: %(default)s)",
    )
    command.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")


def _run(args: argparse.Namespace) -> None:
    """Print the state.

    :raises ConnectionError: ZooKeeper cannot be reached, or refuses
    """
    status = asyncio.run(_read(args.zookeeper, args.zookeeper_auth, args.connect_seconds))
    if args.format == "json":
        print_json(status_to_json(status))
    else:
        _print_tables(status)


async def _read(zookeeper: str, auth: tuple[str, str] | None, seconds: float) -> ClusterStatus:
    from kcoord_wire.central.status import StatusReader
    from kcoord_wire.zookeeper.client import ZooKeeperRegistry

    reader = StatusReader()
    registry = ZooKeeperRegistry(
        zookeeper,
        reader.deliver,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        credentials=auth,
        creates_chroot=False,
    )
    reader.registry = registry
    await registry.start(seconds)
    try:
        return await reader.read()
    finally:
        await registry.close()


def status_to_json(status: ClusterStatus) -> dict[str, Any]:
    """Return a cluster's state as plain data; what only the coordinator has is null where it did not answer."""
    live = {} if status.live is None else {group.group_id: group for group in status.live.groups}
    names = sorted({*status.groups, *live})
    leader = status.leader
    return {
        "coordinator": leader
        and {
            "broker": leader.broker_id,
            "epoch": leader.epoch,
            "elected_ms_ago": status.live and status.live.elected_ms,
            "silence": status.silence or None,
        },
        "brokers": {str(each.broker_id): address_text(each.host, each.port) for each in status.brokers.values()},
        "topics": {topic: {str(each): number for each, number in at.items()} for topic, at in status.topics.items()},
        "groups": {name: _live_part(live.get(name)) | _stored_part(status.groups.get(name)) for name in names},
    }


def _live_part(group: m.CentralStatusResponseGroup | None) -> dict[str, Any]:
    if group is None:
        return dict.fromkeys(("generation", "phase", "waits_for", "consumers"))
    consumers = {}
    for consumer in group.consumers:
        consumers[consumer.consumer_id] = asdict(consumer)
        del consumers[consumer.consumer_id]["consumer_id"]
    return {
        "generation": group.generation,
        "phase": group.phase,
        "waits_for": group.waits_for,
        "consumers": consumers,
    }


def _stored_part(group: GroupStatus | None) -> dict[str, Any]:
    if group is None:
        return {"owners": {}, "offsets": {}}
    return {
        "owners": {f"{each.topic}/{each.name}": owner for each, owner in sorted(group.owners.items())},
        "offsets": {f"{each.topic}/{each.name}": offset for each, offset in sorted(group.offsets.items())},
    }


def _print_tables(status: ClusterStatus) -> None:
    """What is empty is not shown, but for the coordinator."""
    plain = status_to_json(status)
    print(_coordinator_line(status), end="\n\n")
    brokers = table("brokers", "id", "address", "partitions")
    for broker_id, address in plain["brokers"].items():
        counts = [f"{topic}:{at[broker_id]}" for topic, at in plain["topics"].items() if broker_id in at]
        brokers.add_row(broker_id, styled(address), styled(" ".join(counts)))
    groups = table("groups", "group", "generation", "phase", "waits for", "owned", "committed")
    consumers = table("consumers", "group", "consumer", "host", "topics", "session ms", "failed pings", "partitions")
    owners = table("partitions", "group", "partition", "owner", "offset")
    for name, group in plain["groups"].items():
        cells = [str(len(group["owners"])), str(len(group["offsets"]))]
        waits = " ".join(group["waits_for"] or ())
        generation = "?" if group["generation"] is None else str(group["generation"])
        groups.add_row(styled(name), generation, styled(group["phase"] or "?"), styled(waits), *cells)
        for consumer_id, consumer in (group["consumers"] or {}).items():
            facts = [
                consumer[key] for key in ("host", "topic_count", "session_timeout_ms", "failed_pings", "partitions")
            ]
            consumers.add_row(styled(name), styled(consumer_id), *(styled(str(fact)) for fact in facts))
        for partition in sorted({*group["owners"], *group["offsets"]}):
            offset = group["offsets"].get(partition, "-")
            owners.add_row(styled(name), styled(partition), styled(group["owners"].get(partition, "-")), str(offset))
    for made in (brokers, groups, consumers, owners):
        if made.row_count:
            print_table(made)


def _coordinator_line(status: ClusterStatus) -> str:
    if status.leader is None:
        is_empty = not (status.brokers or status.topics or status.groups)
        return "coordinator: none is elected" + ("; ZooKeeper has no broker, topic or group there" if is_empty else "")
    line = f"coordinator: broker {status.leader.broker_id}, epoch {status.leader.epoch}"
    if status.live is None:
        return f"{line}; {status.silence}; consumers and rebalances are not known"
    return f"{line}, elected {status.live.elected_ms / 1000:.1f} s ago"
