"""`kcoord analyze`: from a capture, log segments or a live topic to why a group rebalanced.

Laws:

* What was found goes to stdout, as text for people or as one JSON object; how far it is, and what was lost, to stderr.
* With --out, the tables (Parquet), report.json and report.html are there when the command has ended well; each file is
  written beside its place and then moved into it, so that an interrupt leaves none half.
* A source with damage is read as far as it can be, with status 0; only one that has nothing at all is an error.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from kcoord_wire.forensics.analysis import Analysis

__all__ = ["add_parser"]

EXAMPLES = """\
examples:
  kcoord analyze trace.pcap
      why each group in the capture rebalanced, on the terminal
  kcoord analyze recording/ --out report
      the same of what `kcoord record` wrote; report/report.html to look at, report/*.parquet to query
  kcoord analyze data/__consumer_offsets-12 data/__consumer_offsets-40 --group billing
      from a broker's own log: who came and went, who had what; the wire tells more
  kcoord analyze --kafka broker:9092 --kafka-config security.protocol=SSL
      the same from the live topic; only reads, joins no group, commits nothing
  kcoord analyze 'captures/*.pcap' --spark-master 'local[8]' --out report
      on Spark, for what does not fit one process

tables: groups rebalances generations states members ownership pauses commits findings losses
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "tell why consumer groups rebalanced, from captures or from __consumer_offsets"
    command = commands.add_parser(
        "analyze",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "source",
        nargs="*",
        help="captures (pcap, pcapng), recordings of `kcoord record`, segments of __consumer_offsets; "
        "files, folders or patterns",
    )
    command.add_argument("--kafka", metavar="HOST:PORT", help="read __consumer_offsets of this cluster instead")
    command.add_argument(
        "--kafka-config",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a setting of librdkafka, as in sasl.username=me; may be repeated",
    )
    command.add_argument("--group", action="append", help="only this group; may be repeated")
    command.add_argument(
        "--port", type=int, action="append", help="only this port of a broker, in captures; may be repeated"
    )
    command.add_argument("--spark-master", metavar="URL", help="run on Spark, as in local[4] or spark://host:7077")
    command.add_argument("--out", type=Path, metavar="DIR", help="write tables, report.json and report.html here")
    command.add_argument("--format", choices=("text", "json"), default="text")
    command.add_argument("--quiet", action="store_true", help="do not tell how far it is")
    command.set_defaults(run=_run)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _run(args: argparse.Namespace) -> None:
    if bool(args.source) == bool(args.kafka):
        raise ValueError("give either files or --kafka HOST:PORT (see kcoord analyze --help)")
    meter = _Meter(sys.stderr, silent=args.quiet or not sys.stderr.isatty())
    try:
        analysis = _analyze(args, meter)
    finally:
        meter.clear()
    if not analysis.histories:
        wanted = f" called {', '.join(args.group)}" if args.group else ""
        raise ValueError(f"no consumer group{wanted} is in {args.kafka or ', '.join(args.source)}")
    if args.out is not None:
        _write(analysis, args)
    if args.format == "json":
        from kcoord_wire.report import write_json

        write_json(analysis.histories, analysis.losses, sys.stdout)
    else:
        from kcoord_wire.report import print_summary

        print_summary(analysis.histories, analysis.losses, sys.stdout)
        if args.out is not None:
            print(f"\n{args.out / 'report.html'}", flush=True)


def _analyze(args: argparse.Namespace, meter: _Meter) -> Analysis:
    from kcoord_wire.extras import require

    require("pyarrow", "analyze", "analyze")
    if args.spark_master is not None:
        require("pyspark", "spark", "--spark-master")
        from kcoord_wire.spark.analysis import analyze as analyze_on_spark

        return analyze_on_spark(
            args.source,
            kafka=args.kafka,
            kafka_config=dict(args.kafka_config),
            master=args.spark_master,
            ports=args.port,
            groups=args.group,
            progress=meter.tell,
        )
    from kcoord_wire.forensics.analysis import analyze, analyze_records

    if args.kafka is not None:
        from kcoord_wire.forensics.live import read_topic

        config: Mapping[str, str] = dict(args.kafka_config)
        batches = read_topic(args.kafka, config, progress=lambda done, total: meter.tell(args.kafka, done, total))
        return analyze_records(batches, groups=args.group)
    return analyze(args.source, ports=args.port, groups=args.group, progress=meter.tell)


def _write(analysis: Analysis, args: argparse.Namespace) -> None:
    from kcoord_wire.forensics.analysis import write_tables
    from kcoord_wire.report import write_html, write_json

    folder: Path = args.out
    title = args.kafka or ", ".join(Path(source).name for source in args.source[:3])
    told = {name: analysis.counts.get(name, 0) for name in ("sources", "frames", "records")}
    source = ", ".join(f"{count:,} {name if count != 1 else name[:-1]}" for name, count in told.items() if count)
    write_tables(analysis.histories, analysis.losses, folder)
    with _whole(folder / "report.json") as path:
        write_json(analysis.histories, analysis.losses, path)
    with _whole(folder / "report.html") as path:
        write_html(analysis.histories, analysis.losses, path, title=title, source=source)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A place beside `path`, from where the file is moved when it is complete."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class _Meter:
    """How far it is, in one line of a terminal, written over four times a second."""

    def __init__(self, file: TextIO, *, silent: bool) -> None:
        self._file = file
        self._silent = silent
        self._next = 0.0
        self._began = time.monotonic()
        self._told = False

    def tell(self, what: str, done: int, total: int) -> None:
        """`done` of `total`, in bytes or records."""
        now = time.monotonic()
        if self._silent or now < self._next:
            return
        self._next = now + 0.25
        self._told = True
        share = 100 * done / total if total else 100.0
        from kcoord_wire.fields import printable

        self._file.write(f"\r\x1b[K{share:5.1f} %  {now - self._began:.0f} s  {printable(what)}")
        self._file.flush()

    def clear(self) -> None:
        """Leave the line as it was."""
        if self._told:
            self._file.write("\r\x1b[K")
            self._file.flush()
