"""`kcoord analyze`: explain why groups rebalanced, from captures, log segments, logs of text or a live topic.

Laws:

* Results go to stdout, as text for people or as one JSON object; progress and losses go to stderr.
* With --out, status 0 means that the tables (Parquet), report.json and report.html exist. Each is written beside its
  place and then moved there, so that an interrupt leaves no partial file.
* A damaged source is read as far as possible, with status 0; only a source without any group is an error.
* The first interrupt (Ctrl-C) ends the reading: what was read is analysed and written, and marked as partial. The
  second ends the command at once. Work on Spark ends with the first.
* --out is checked before anything is read. A pipe is copied to a temporary file first.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from kcoord_wire.cli.arguments import add_command, add_settings_argument, argument, parse_positive
from kcoord_wire.cli.output import complain
from kcoord_wire.cli.report_files import make_writable, write_report
from kcoord_wire.codec.fields import printable
from kcoord_wire.extras import require

if TYPE_CHECKING:
    from kcoord_wire.forensics.analysis import Analysis
    from kcoord_wire.forensics.pace import Stop

EXAMPLES = """\
examples:
  kcoord analyze trace.pcap
      why each group in the capture rebalanced, on the terminal
  kcoord analyze recording/ --out report
      the same from a recording of `kcoord record`; report/report.html to look at, report/*.parquet to query
  kcoord analyze data/__consumer_offsets-12 data/__consumer_offsets-40 --group billing
      from a broker's own log: members and assignments; captures of the wire show more
  kcoord analyze --kafka broker:9092 --kafka-config security.protocol=SSL
      the same from the live topic; only reads, joins no group, commits nothing
  kcoord analyze --kafka broker:9092 --topic __marshal
      who claimed what, from Marshal's coordination topic; also from its segments: kcoord analyze data/__marshal-*
  kcoord analyze server.log.2026-11-22-1* app-*.log --timezone Europe/Berlin
      from what brokers and clients log; with a capture of the same incident, the broker's reasons stand beside it
  kubectl exec broker-0 -- tcpdump -w - port 9092 | kcoord analyze - --out report
      from standard input, copied to a temporary file; anything packed with gzip is unpacked
  kcoord analyze 'captures/*.pcap' --spark-master 'local[8]' --out report
      on Spark, for sources that do not fit one process

tables in DIR: groups rebalances generations states members ownership claims pauses commits lag partitions resets
               outages holes findings losses
"""

_TLS: Final = "looks like TLS"  # in `Loss.what`
_GAP: Final = "not captured"  # in `Loss.what` where packets were cut or dropped
_LONGEST_INTERVAL_S: Final = 86_400


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "explain why consumer groups rebalanced, from captures, __consumer_offsets, or logs of brokers and clients"
    command = add_command(commands, "analyze", about, _run, examples=EXAMPLES)
    command.add_argument(
        "source",
        nargs="*",
        help="captures (pcap, pcapng), recordings of `kcoord record`, segments of __consumer_offsets, logs of brokers "
        "and clients; files, folders or patterns; - for standard input",
    )
    command.add_argument("--kafka", metavar="HOST:PORT", help="read __consumer_offsets and lag of this cluster instead")
    command.add_argument("--topic", metavar="NAME", help="with --kafka: read this topic instead, as in __marshal")
    add_settings_argument(command, "--kafka-config", "for --kafka, as in sasl.username=me")
    command.add_argument("--group", action="append", metavar="ID", help="only this group; may be repeated")
    command.add_argument(
        "--port",
        type=int,
        action="append",
        help="only this port of a broker, in captures; may be repeated; found in the bytes if not given",
    )
    command.add_argument(
        "--marshal-rules",
        choices=("document", "library"),
        default="document",
        help="what judges the claims in Marshal's log: its document (default), or what its Go library does",
    )
    command.add_argument(
        "--heartbeat-interval",
        type=argument(parse_positive),
        default=60,
        metavar="S",
        help="of Marshal's members, in seconds; 60 by default, as in the Go library",
    )
    command.add_argument(
        "--timezone",
        default="UTC",
        metavar="ZONE",
        help="of lines of logs whose time states none, as in Europe/Berlin or +02:00; UTC by default",
    )
    command.add_argument("--spark-master", metavar="URL", help="run on Spark, as in local[4] or spark://host:7077")
    command.add_argument("--out", type=Path, metavar="DIR", help="write tables, report.json and report.html here")
    command.add_argument("--format", choices=("text", "json"), default="text")
    command.add_argument("--quiet", action="store_true", help="show no progress")


def _check(args: argparse.Namespace) -> None:
    if bool(args.source) == bool(args.kafka):
        raise ValueError("give either files or --kafka HOST:PORT (see kcoord analyze --help)")
    if args.heartbeat_interval > _LONGEST_INTERVAL_S:
        raise ValueError(f"--heartbeat-interval is in seconds, {_LONGEST_INTERVAL_S} (a day) at most")
    if args.topic and not args.kafka:
        raise ValueError("--topic names a topic of a cluster: give --kafka HOST:PORT, too")
    if args.out is not None:
        make_writable(args.out)


def _run(args: argparse.Namespace) -> None:
    _check(args)
    meter = _Meter(sys.stderr, silent=args.quiet or not sys.stderr.isatty())
    with tempfile.TemporaryDirectory(prefix="kcoord-") as folder:
        sources = [_seekable(source, Path(folder, f"stdin-{at}")) for at, source in enumerate(args.source)]
        try:
            with nullcontext(bool) if args.spark_master else _first_interrupt(meter) as stop:
                analysis = _histories(args, sources, meter, stop)
        finally:
            meter.clear()
    if analysis.stopped is not None:
        complain(f"PARTIAL: reading was stopped at {analysis.stopped:.0%}; what follows is of the part that was read")
    if not analysis.histories:
        raise ValueError(_why_empty(analysis, args))
    if args.out is not None:
        _write(analysis, args)
    _print(analysis, args)
    gaps = sum(loss.count for loss in analysis.losses if _GAP in loss.what)
    if gaps:
        complain(
            f"bytes are missing from the capture in {gaps:,} places, and rebalances may be missing with them: "
            "capture whole packets (tcpdump -s 0) and drop none (tcpdump -B 65536)"
        )


def _seekable(source: str, place: Path) -> str:
    """The path of a file with the bytes of `source`: standard input and pipes are copied to `place`."""
    if source != "-" and not (os.path.exists(source) and stat.S_ISFIFO(os.stat(source).st_mode)):
        return source
    with place.open("wb") as file, _until_interrupted(source):
        if source == "-":
            shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            with open(source, "rb") as pipe:
                shutil.copyfileobj(pipe, file)
    return str(place)


@contextmanager
def _until_interrupted(source: str) -> Iterator[None]:
    """Let an interrupt end the copying, so that what has come is read: it often ends the writer of the pipe as well."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"{'standard input' if source == '-' else source}: interrupted; what has come so far is read")


@contextmanager
def _first_interrupt(meter: _Meter) -> Iterator[Stop]:
    """Yield whether there was an interrupt; a second one ends the command as usual."""
    interrupts: list[int] = []

    def note(number: int, _: object) -> None:
        interrupts.append(number)
        signal.signal(signal.SIGINT, before)
        meter.clear()
        complain("stopping: what was read is analysed now; interrupt again to end at once")

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield bool  # only the main thread receives signals
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(interrupts)
    finally:
        signal.signal(signal.SIGINT, before)


def _why_empty(analysis: Analysis, args: argparse.Namespace) -> str:
    where = args.kafka or ", ".join(args.source)
    if args.group:
        return f"no consumer group called {', '.join(args.group)} is in {where}; leave out --group to see all of them"
    if analysis.counts.get("lines"):
        return (
            f"no line in {where} names the consumer group that it is about; kcoord explain-line says what a line means"
        )
    if analysis.counts.get("exchanges") or analysis.counts.get("records"):
        return f"no consumer group is in {where}, only other Kafka traffic"
    if any(_TLS in loss.what for loss in analysis.losses):
        return (
            f"no consumer group is in {where}: connections in it look like TLS, which hides what they carry; "
            "point the clients at kcoord record (--upstream-tls), and analyze its recording"
        )
    text = f"no consumer group is in {where}: a capture needs the brokers' traffic, in whole packets and without TLS"
    if analysis.losses:
        first = analysis.losses[0]
        text += f"; what could not be read begins at {first.position:,} of {first.source}: {first.what}"
    return text


def _print(analysis: Analysis, args: argparse.Namespace) -> None:
    if args.format == "json":
        from kcoord_wire.report import write_json

        write_json(analysis.histories, analysis.losses, sys.stdout)
    else:
        from kcoord_wire.report import print_summary

        print_summary(analysis.histories, analysis.losses, sys.stdout)
        if args.out is not None:
            print(f"\n{args.out / 'report.html'}")
    sys.stdout.flush()


def _histories(args: argparse.Namespace, sources: list[str], meter: _Meter, stop: Stop) -> Analysis:
    require("pyarrow", "analyze", "analyze")
    from kcoord_wire.forensics.marshal.reader import Judge
    from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC

    judge = Judge(args.marshal_rules, args.heartbeat_interval)
    topic = args.topic or OFFSETS_TOPIC
    if args.spark_master is not None:
        require("pyspark", "spark", "--spark-master")
        from kcoord_wire.spark.analysis import analyze_on_spark

        with _spark_errors(args.spark_master):
            analysis = analyze_on_spark(
                sources,
                kafka=args.kafka,
                kafka_config=dict(args.kafka_config),
                topic=topic,
                master=args.spark_master,
                ports=args.port,
                groups=args.group,
                progress=meter.show,
                judge=judge,
                timezone=args.timezone,
            )
        _ask_for_lag(analysis, args, topic)
        return analysis
    from kcoord_wire.forensics.analysis import analyze, analyze_records

    if args.kafka is not None:
        from kcoord_wire.forensics.sources.live import read_topic

        config: Mapping[str, str] = dict(args.kafka_config)
        read = [0, 1]  # offsets: done, and those there are

        def show(done: int, total: int) -> None:
            read[:] = done, total
            meter.show(args.kafka, done, total)

        batches = read_topic(args.kafka, config, topic=topic, progress=show)
        analysis = analyze_records(takewhile(lambda _: not stop(), batches), groups=args.group, judge=judge)
        if not stop():
            _ask_for_lag(analysis, args, topic)
        else:
            analysis.stopped = read[0] / max(1, read[1])
        return analysis
    return analyze(
        sources,
        ports=args.port,
        groups=args.group,
        progress=meter.show,
        judge=judge,
        stop=stop,
        timezone=args.timezone,
    )


def _ask_for_lag(analysis: Analysis, args: argparse.Namespace, topic: str) -> None:
    """Add the lag of now to what the live log of offsets showed; without an answer, say so and go on."""
    from kcoord_wire.forensics.analysis import add_lag
    from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC, TopicError, read_lag

    if args.kafka is None or topic != OFFSETS_TOPIC:
        return
    groups = [history.group.group_id for history in analysis.histories]
    try:
        add_lag(analysis.histories, read_lag(args.kafka, dict(args.kafka_config), groups=groups))
    except TopicError as error:
        complain(f"lag is not known: {error}")


@contextmanager
def _spark_errors(master: str) -> Iterator[None]:
    """Turn an error of Spark into a ValueError of one line, and keep an interrupt out of its log."""
    root = logging.getLogger()
    root.addFilter(_is_not_interrupt)
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        lines = [line.strip(" :") for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"Spark at {master} failed: {' '.join(lines[:2])}") from error
    finally:
        root.removeFilter(_is_not_interrupt)


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


def _write(analysis: Analysis, args: argparse.Namespace) -> None:
    title = args.kafka or ", ".join("stdin" if source == "-" else Path(source).name for source in args.source[:3])
    counts = {name: analysis.counts.get(name, 0) for name in ("sources", "frames", "records", "lines")}
    source = ", ".join(f"{count:,} {name if count != 1 else name[:-1]}" for name, count in counts.items() if count)
    write_report(analysis.histories, analysis.losses, args.out, title=title, source=source)


class _Meter:
    """Progress in one line of a terminal, at most four times a second."""

    def __init__(self, file: TextIO, *, silent: bool) -> None:
        self._file = file
        self._silent = silent
        self._next = 0.0
        self._began = time.monotonic()
        self._is_shown = False

    def show(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes or records are read."""
        now = time.monotonic()
        if self._silent or now < self._next:
            return
        self._next = now + 0.25
        self._is_shown = True
        share = 100 * done / total if total else 100.0
        self._file.write(f"\r\x1b[K{share:5.1f} %  {now - self._began:.0f} s  {printable(what)}")
        self._file.flush()

    def clear(self) -> None:
        """Wipe the line."""
        if self._is_shown:
            self._file.write("\r\x1b[K")
            self._file.flush()
