"""`kcoord central status`: who coordinates, and the groups with their consumers, owners and offsets.

Laws:

* What the coordinator alone knows (consumers, and what a rebalance waits for) is asked of the coordinator. If it does
  not answer, the status says why, and shows what ZooKeeper has.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import add_command, argument
from kcoord_wire.cli.central_serve import parse_auth
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.net import address_text

if TYPE_CHECKING:
    from kcoord_wire.central.status import ClusterStatus

__all__ = ["add_parser", "status_to_json"]

EXAMPLES: Final = """\
examples:
  kcoord central status --zookeeper zk1:2181,zk2:2181,zk3:2181/kafka
  kcoord central status --zookeeper zk1:2181 --format json | jq .groups
"""
SESSION_TIMEOUT_MS: Final = 6_000


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord central`."""
    about = "who coordinates, the groups, their consumers, owners and offsets, and what waits for what"
    command = add_command(commands, "status", about, _run, examples=EXAMPLES)
    command.add_argument("--zookeeper", required=True, metavar="HOST:PORT,...[/CHROOT]", help="the ensemble")
    command.add_argument(
        "--zookeeper-auth", type=argument(parse_auth), metavar="USER:PASSWORD", help="digest, where nodes have an ACL"
    )
    command.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")


def _run(args: argparse.Namespace) -> None:
    """Print the state.

    :raises ConnectionError: ZooKeeper cannot be reached, or refuses
    """
    status = asyncio.run(_read(args.zookeeper, args.zookeeper_auth))
    if args.format == "json":
        print_json(status_to_json(status))
    else:
        _print_tables(status)


async def _read(zookeeper: str, auth: tuple[str, str] | None) -> ClusterStatus:
    from kcoord_wire.central.status import StatusReader
    from kcoord_wire.zookeeper.client import ZooKeeperRegistry

    reader = StatusReader()
    registry = ZooKeeperRegistry(
        zookeeper, reader.deliver, session_timeout_ms=SESSION_TIMEOUT_MS, credentials=auth
    )
    reader.registry = registry
    await registry.start()
    try:
        return await reader.read()
    finally:
        await registry.close()


def status_to_json(status: ClusterStatus) -> dict[str, Any]:
    """Return a cluster's state as plain data; ``consumers`` of a group are null where the coordinator did not answer."""
    live = status.live
    by_group = {} if live is None else {group.group_id: group for group in live.groups}
    groups = {}
    for name in sorted({*status.groups, *by_group}):
        known, described = status.groups.get(name), by_group.get(name)
        groups[name] = {
            "generation": described and described.generation,
            "phase": described and (described.phase or "stable"),
            "waits_for": described and described.waits_for,
            "consumers": described
            and {
                consumer.consumer_id: {
                    "host": consumer.host,
                    "topic_count": consumer.topic_count,
                    "session_timeout_ms": consumer.session_timeout_ms,
                    "failed_pings": consumer.failed_pings,
                    "partitions": consumer.partitions,
                }
                for consumer in described.consumers
            },
            "owners": {f"{each.topic}/{each.name}": owner for each, owner in sorted(known.owners.items())} if known else {},
            "offsets": {f"{each.topic}/{each.name}": at for each, at in sorted(known.offsets.items())} if known else {},
        }
    return {
        "coordinator": status.leader and {
            "broker": status.leader.broker_id,
            "epoch": status.leader.epoch,
            "elected_ms_ago": live and live.elected_ms,
            "silence": status.silence or None,
        },
        "brokers": {str(each.broker_id): address_text(each.host, each.port) for each in status.brokers.values()},
        "topics": {topic: {str(each): number for each, number in at.items()} for topic, at in status.topics.items()},
        "groups": groups,
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
            facts = [consumer[key] for key in ("host", "topic_count", "session_timeout_ms", "failed_pings", "partitions")]
            consumers.add_row(styled(name), styled(consumer_id), *(styled(str(fact)) for fact in facts))
        for partition in sorted({*group["owners"], *group["offsets"]}):
            offset = group["offsets"].get(partition, "-")
            owners.add_row(styled(name), styled(partition), styled(group["owners"].get(partition, "-")), str(offset))
    for made in (brokers, groups, consumers, owners):
        if made.row_count:
            print_table(made)


def _coordinator_line(status: ClusterStatus) -> str:
    if status.leader is None:
        return "coordinator: none is elected"
    line = f"coordinator: broker {status.leader.broker_id}, epoch {status.leader.epoch}"
    if status.live is None:
        return f"{line}; {status.silence}; consumers and rebalances are not known"
    return f"{line}, elected {status.live.elected_ms / 1000:.1f} s ago"
