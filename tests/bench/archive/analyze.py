"""Measures `kcoord analyze` next to tshark on the same captures: processor time and memory, both in one run."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcoord_wire.capture import read_raw_frames
from kcoord_wire.capture.pcap import NANOSECONDS, Packet, read_packets

from ..runner import ROOT, Bench, Made, Targets, conditions, digits, results_page, section_text, shown, table
from .captures import write_captures

RESULTS: Final = Path(__file__).parent / "results" / "analyze"
DATA: Final = ROOT / "tests" / "data"
CASES: Final = {
    "small": "a group of two members that rebalances (tests/data/captures/cooperative.pcap)",
    "incident": "an incident of three applications (tests/data/incidents/applications-3)",
    "incidents": "all of tests/data/incidents in one capture",
    "busy": "8 groups of 10 members at work, from the archives on Spark",
}
MOST_TIMES: Final = 2.0
"""Of tshark's processor time."""
MOST_MEMORY: Final = 1.2
"""Of tshark's memory."""
NOTES: Final = """\
`kcoord analyze FILE --quiet` and `tshark -r FILE -Y kafka`, with the brokers' ports: it dissects every Kafka
message and prints a line for each; `kcoord` decodes those of groups, explains them and prints its report. Processor
seconds (user and system) and the most memory that was resident, each the least of several runs in turns; `kcoord` has
its bytecode, as an installed package has.
"""


_LAUNCHER: Final = """
import json, os, sys
nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=nowhere)
_, status, used = os.wait4(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""
"""A small process that starts a program by its path: what a process holds when it starts another counts as the most
that the other has held."""


class Spent(NamedTuple):
    """What a process took: seconds of processor time, and the most bytes that were resident."""

    seconds: float
    memory: int


def spent(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Spent:
    """Run a program by its path to its end, without its output.

    :raises subprocess.CalledProcessError: it fails
    """
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command], stdout=subprocess.PIPE, check=True, env=environment
    )
    status, seconds, memory = json.loads(run.stdout)
    if status:
        raise subprocess.CalledProcessError(status, command)
    return Spent(seconds, memory)


def write_together(paths: Sequence[Path], path: Path) -> int:
    """Write the packets of captures of Ethernet into one capture, in order of their times; return how many."""
    found: list[Packet] = []
    for each in paths:
        found += read_packets(BytesIO(gzip.decompress(each.read_bytes())), sys.exit)
    (link_type,) = {packet.link_type for packet in found}
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, link_type))
        for packet in sorted(found, key=attrgetter("time_ns")):
            seconds, fraction = divmod(packet.time_ns, NANOSECONDS)
            file.write(struct.pack("<IIII", seconds, fraction, len(packet.data), packet.length) + packet.data)
    return len(found)


def _write(case: str, path: Path, *, quick: bool) -> None:
    if case == "small":
        shutil.copy(DATA / "captures" / "cooperative.pcap", path)
    elif case == "incident":
        write_together([DATA / "incidents" / "applications-3.pcap.gz"], path)
    elif case == "incidents":
        write_together(sorted((DATA / "incidents").glob("*.pcap.gz"))[: 2 if quick else None], path)
    else:
        folder = path.parent / "busy"
        write_captures(folder, 2_000 if quick else 200_000, 1, 8, 10)
        (written,) = folder.iterdir()
        written.replace(path)


def _ports(path: Path) -> set[str]:
    """The brokers' ports in a capture."""
    names = {frame.connection for frame in read_raw_frames(path) if frame.connection}
    return {name.rpartition("#")[0].rpartition(":")[2] for name in names}


def measure(options: argparse.Namespace) -> Made:
    tshark = shutil.which("tshark")
    if tshark is None:
        sys.exit("tshark is missing: apt-get install -y tshark (or make interop, which does it)")
    version = subprocess.run([tshark, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    made: Made = {"tshark": version.rstrip("."), "cases": {}}
    with tempfile.TemporaryDirectory(prefix="kcoord-analyze-") as name:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{name}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for case in CASES:
            path = Path(name, f"{case}.pcap")
            _write(case, path, quick=options.quick)
            as_kafka = [word for port in sorted(_ports(path)) for word in ("-d", f"tcp.port=={port},kafka")]
            commands = {
                "kcoord": [sys.executable, "-m", "kcoord_wire", "analyze", str(path), "--quiet"],
                "tshark": [tshark, "-r", str(path), *as_kafka, "-Y", "kafka"],
            }
            for command in commands.values():  # caches are filled, and the bytecode is written
                spent(command, environment)
            runs = [
                (program, spent(command, environment))
                for _ in range(1 if options.quick else options.runs)
                for program, command in commands.items()
            ]
            found: dict[str, Any] = {"bytes": path.stat().st_size}
            for program in commands:
                seconds, memory = zip(*(each for of, each in runs if of == program), strict=True)
                found[program] = {"seconds": min(seconds), "memory": min(memory)}
            made["cases"][case] = found
            print(f"{case}: {found['kcoord']['seconds']:.2f} s, tshark {found['tshark']['seconds']:.2f} s", flush=True)
    return made


def times(made: Made, case: str, what: str) -> float:
    """How many times as much as tshark `kcoord` takes.

    :param what: ``seconds`` or ``memory``
    """
    found = made["cases"][case]
    return float(found["kcoord"][what] / found["tshark"][what])


def rows(made: Made) -> Iterator[list[str]]:
    for case, found in made["cases"].items():
        ours, theirs = found["kcoord"], found["tshark"]
        yield [
            CASES[case],
            f"{found['bytes'] / 1e6:.1f}",
            f"{digits(ours['seconds'])} / {digits(theirs['seconds'])}",
            f"{times(made, case, 'seconds'):.2f}",
            f"{ours['memory'] / 2**20:,.0f} / {theirs['memory'] / 2**20:,.0f}",
            f"{times(made, case, 'memory'):.2f}",
        ]


def targets(made: Made) -> Targets:
    """Each target, whether it is met, and the figures."""
    for case in made["cases"]:
        for what, most, name in (("seconds", MOST_TIMES, "processor time"), ("memory", MOST_MEMORY, "memory")):
            found = times(made, case, what)
            yield f"{case}: at most {most} times tshark's {name}", found <= most, f"{shown(found, most)} times"


def report(made: Made) -> Iterator[str]:
    yield conditions(made, f"tshark {made['tshark']}") + "."
    yield ""
    heads = ["capture", "MB", "kcoord / tshark, processor s", "times", "MiB of the same", "times"]
    yield from table(heads, rows(made))


def markdown(made: Made) -> str:
    return results_page("kcoord analyze next to tshark", NOTES, report(made), targets(made))


def summary(made: Made) -> str:
    """The section of docs/benchmarks.md."""
    return section_text(report(made), targets(made), RESULTS)


BENCH = Bench(
    about="`kcoord analyze` next to tshark, which dissects the same captures.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    options={"runs": {"type": int, "default": 5, "help": "of each program"}},
    quick=True,
    title="kcoord analyze",
    command="python -m tests.bench analyze",
    summary=summary,
)
