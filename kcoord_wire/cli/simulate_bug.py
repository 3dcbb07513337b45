"""`kcoord simulate bug`: a known bug of a client library, played on the virtual cluster with and without it.

Laws:

* A bug has the same run on every machine; ``--seed`` decides what the script leaves open.
* The damage goes to stdout, first with the bug and then without it; with ``--explain``, what the frames show as well.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any, Final

from kcoord_wire.cli.arguments import UsageError, add_command
from kcoord_wire.clients.bugs import CLIENT_BUGS, ClientBug

EXAMPLES: Final = """\
examples:
  kcoord simulate bug --list
      the bugs, with the versions that fixed them
  kcoord simulate bug KAFKA-14639 --explain
      what it does to a group, and what a capture of the group shows
"""

_COLUMNS: Final = (("with the bug", True), ("without", False))


def add_parser(scenarios: argparse._SubParsersAction[Any]) -> None:
    """Add the scenario to those of `kcoord simulate`."""
    about = "play a known bug of a client library, and the same group without it"
    command = add_command(scenarios, "bug", about, _run, examples=EXAMPLES)
    command.add_argument("name", nargs="?", metavar="NAME", help="the bug, as its project calls it")
    command.add_argument("--list", action="store_true", help="list the bugs")
    command.add_argument("--seed", type=int, default=0, help="of the virtual cluster (default: 0)")
    command.add_argument("--explain", action="store_true", help="analyze the frames too (extra analyze)")


def _run(args: argparse.Namespace) -> None:
    if args.list:
        for bug in CLIENT_BUGS.values():
            print(f"{bug.name:<16} {_versions(bug)}\n    {bug.shape}")
        return
    if args.name not in CLIENT_BUGS:
        problem = "no bug is named" if args.name is None else f"no bug is called {args.name!r}"
        raise UsageError(f"{problem}; there are {', '.join(CLIENT_BUGS)}")
    _play(CLIENT_BUGS[args.name], args.seed, explain=args.explain)


def _versions(bug: ClientBug) -> str:
    since = f"since {bug.since}, " if bug.since else ""
    return f"{since}fixed in {', '.join(bug.fixed)}" if bug.fixed else "open"


def _play(bug: ClientBug, seed: int, *, explain: bool) -> None:
    from kcoord_wire.worlds.group.bug_scripts import play_bug

    print(f"{bug.name} ({_versions(bug)})\n{bug.shape}\n{bug.reference}")
    for title, is_present in _COLUMNS:
        frames = _Frames()
        _, damage = play_bug(bug.name, is_present=is_present, seed=seed, tap=frames)
        print(f"\n{title}: {', '.join(f'{key} {value}' for key, value in asdict(damage).items())}")
        if explain:
            for line in _explained(frames):
                print(f"  {line}")


class _Frames(list[tuple[int, str, str, bytes]]):
    """A `Tap` that keeps all frames."""

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        self.append((time_ms, connection, direction, frame))


def _explained(frames: _Frames) -> list[str]:
    """Return what the detectors find in the frames, a sentence each."""
    from kcoord_wire.forensics import analyze_frames
    from kcoord_wire.forensics.model import NS_PER_MS, Frame, table_of

    rows = [
        Frame("virtual", seq, seq, time_ms * NS_PER_MS, connection, direction, frame)
        for seq, (time_ms, connection, direction, frame) in enumerate(sorted(frames, key=lambda row: row[0]))
    ]
    (history,) = analyze_frames(table_of(Frame, rows).to_batches()).histories
    return [f"{finding.detector} ({finding.severity}): {finding.text}" for finding in history.findings] or [
        "no finding"
    ]
