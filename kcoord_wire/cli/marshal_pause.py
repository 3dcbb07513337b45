"""`kcoord marshal pause`: pauses a whole group until a time, or ends its pause.

Laws:

* The pause is on every coordination partition, so that each member of the group reads it.
* It ends by itself, within 7 days.
"""

from __future__ import annotations

import argparse
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.cli.arguments import add_command, argument
from kcoord_wire.cli.marshal_cluster import add_cluster_arguments, check_option_id, open_log
from kcoord_wire.cli.output import print_json
from kcoord_wire.codec.fields import printable

if TYPE_CHECKING:
    from kcoord_wire.marshal.admin import AdminSettings
    from kcoord_wire.marshal.log import Log

EXAMPLES: Final = """\
examples:
  kcoord marshal pause billing --brokers 127.0.0.1:9092 --for 5m
  kcoord marshal pause billing --brokers 127.0.0.1:9092 --until 2026-11-23T06:00:00Z
  kcoord marshal pause billing --brokers 127.0.0.1:9092 --resume

members release what they hold; those of the Go library since May 2017 ignore the pause, and status shows it
"""
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord marshal`."""
    command = add_command(commands, "pause", "pause a whole group, or end its pause", _run, examples=EXAMPLES)
    command.add_argument("group", metavar="GROUP", help="the group")
    add_cluster_arguments(command)
    until = command.add_mutually_exclusive_group(required=True)
    until.add_argument("--for", dest="span_s", type=argument(parse_span), metavar="TIME", help="as 90s, 5m, 2h, 1d")
    until.add_argument("--until", dest="until_ms", type=argument(parse_time), metavar="TIME", help="ISO 8601")
    until.add_argument("--resume", action="store_true", help="end the pause")
    command.add_argument("--json", action="store_true", help="print a JSON object")


def parse_span(text: str) -> int:
    """Seconds of a span such as 90s, 5m, 2h or 1d. ValueError: not one."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or not int(number) or unit not in UNITS:
        raise ValueError(f"{text!r} is not a span of time such as 90s, 5m, 2h or 1d")
    return int(number) * UNITS[unit]


def parse_time(text: str) -> int:
    """A moment in ISO 8601 as ms since the Unix epoch; UTC where it names no zone. ValueError: not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-11-22T14:00:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _run(args: argparse.Namespace) -> None:
    """Pause or resume.

    :raises UsageError: the group id cannot be in a message
    :raises LogError: the coordination topic is not there, or takes nothing
    """
    from kcoord_wire.marshal.hosting import wall_ms
    from kcoord_wire.marshal.status import clock_text

    check_option_id("GROUP", args.group)
    now_ms = wall_ms()
    until_ms = 0 if args.resume else args.until_ms or now_ms + args.span_s * 1000
    with open_log(args) as log:
        run_pause(log, admin_settings(args, log.partitions), until_ms)
    if args.json:
        print_json({"group_id": args.group, "paused_until_ms": until_ms or None})
    elif args.resume:
        print(f"group {printable(args.group)} is not paused any more")
    else:
        print(f"group {printable(args.group)} is paused until {clock_text(until_ms, now_ms)} UTC")


def admin_settings(args: argparse.Namespace, partitions: int, **more: Any) -> AdminSettings:
    """Return the settings of an admin with an instance id of its own."""
    from kcoord_wire.marshal.admin import AdminSettings

    interval_ms = args.heartbeat_interval * 1000
    return AdminSettings(args.group, uuid.uuid4().hex[:8], partitions, heartbeat_interval_ms=interval_ms, **more)


def run_pause(log: Log, settings: AdminSettings, until_ms: int) -> None:
    """Pause a group until a time, 0 to end its pause.

    :raises LogError: the log takes nothing, or the time is not within 7 days
    """
    from kcoord_wire.marshal.admin import GroupPauser
    from kcoord_wire.marshal.hosting import run_admin
    from kcoord_wire.marshal.log import LogError

    pauser = GroupPauser(settings, until_ms, range(log.partitions))
    finished = run_admin(
        pauser, log, commit=lambda offsets: None, progress=lambda step: None, is_interrupted=lambda: False
    )
    if finished.failure:
        raise LogError(f"group {settings.group_id}: {finished.failure}")
