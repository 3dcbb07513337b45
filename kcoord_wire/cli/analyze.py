"""`kcoord analyze`: explain why groups rebalanced, from captures, log segments, logs of text or a live topic; and
`kcoord explain-line`: what a line of a broker's or client's log means.

Laws:

* Results go to stdout, as text for people or as one JSON object; progress and losses go to stderr.
* With --out, status 0 means that the tables (Parquet), report.json and report.html exist. Each is written beside its
  place and then moved there, so that an interrupt leaves no partial file.
* A damaged source is read as far as possible, with status 0; only a source without any group is an error.
* The first interrupt (Ctrl-C) ends the reading: what was read is analysed and written, and marked as partial. During
  the analysis it leaves out the groups that were not begun, and says so; while the report is written, it ends nothing.
  The status is 130. The second ends the command at once. Work on Spark ends with the first.
* --out is checked before anything is read. A pipe is copied to a temporary file first.
* Of a line of an unknown kind nothing is said but that; status 1 if none was known.
"""

from __future__ import annotations

import gc
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO

from kcoord_wire.cli.options import (
    Argument,
    CapturedPorts,
    Command,
    Format,
    Groups,
    Interval,
    KafkaConfig,
    Option,
    Positive,
    UsageError,
)
from kcoord_wire.cli.output import complain, make_writable, print_json, write_report
from kcoord_wire.codec.fields import printable
from kcoord_wire.extras import require
from kcoord_wire.protocol.wording import first_of

if TYPE_CHECKING:
    from kcoord_wire.forensics.analysis import Analysis
    from kcoord_wire.forensics.lines.meanings import Explained
    from kcoord_wire.forensics.marshal.reader import ClaimRules
    from kcoord_wire.forensics.sources.files import Stop

_TLS: Final = "looks like TLS"  # in `Loss.what`
_COLLECTED_AT: Final = 50_000  # objects; Python has 700
_GAP: Final = "not captured"  # in `Loss.what` where packets were cut or dropped


def _zone(text: str) -> str:
    from kcoord_wire.forensics.lines.wrapping import parse_zone

    parse_zone(text)
    return text


@dataclass(frozen=True, kw_only=True)
class Analyze(Command):
    """Explain why consumer groups rebalanced, from captures, __consumer_offsets, or logs of brokers and clients.

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
                   rereads outages holes findings losses
    """

    source: Annotated[
        tuple[str, ...],
        Argument(
            "SOURCE",
            "captures (pcap, pcapng), recordings of `kcoord record`, segments of __consumer_offsets, logs of brokers "
            "and clients; files, folders or patterns; - for standard input",
        ),
    ] = ()
    kafka: Annotated[str | None, Option("read __consumer_offsets and lag of this cluster instead", "HOST:PORT")] = None
    topic: Annotated[str | None, Option("with --kafka: read this topic instead, as in __marshal", "NAME")] = None
    kafka_config: KafkaConfig = ()
    group: Groups = ()
    port: CapturedPorts = ()
    marshal_rules: Annotated[
        Literal["document", "library"],
        Option("what judges the claims in Marshal's log: its document, or what its Go library does"),
    ] = "document"
    heartbeat_interval: Annotated[
        Interval, Option("of Marshal's members, in seconds; the Go library has 60", "SECONDS")
    ] = 60
    timezone: Annotated[
        str, _zone, Option("of lines of logs whose time states none, as in Europe/Berlin or +02:00", "ZONE")
    ] = "UTC"
    max_expansion: Annotated[
        Positive, Option("bytes that compressed batches of a segment may have for each of its bytes", "N")
    ] = 100
    spark_master: Annotated[str | None, Option("run on Spark, as in local[4] or spark://host:7077", "URL")] = None
    out: Annotated[Path | None, Option("write tables, report.json and report.html here", "DIR")] = None
    format: Format = "text"
    quiet: Annotated[bool, Option("show no progress")] = False
    schema: Annotated[bool, Option("print the JSON Schema of report.json and of --format json; read nothing")] = False

    def __post_init__(self) -> None:
        if self.schema:
            return
        if bool(self.source) == bool(self.kafka):
            raise UsageError("give either files or --kafka HOST:PORT (see kcoord analyze --help)")
        if self.topic and not self.kafka:
            raise UsageError("--topic names a topic of a cluster: give --kafka HOST:PORT, too")

    def run(self) -> None:
        """Read, analyse, write and print.

        :raises ValueError: no group is in the sources
        :raises OSError: a source cannot be read, or --out cannot be written
        :raises KeyboardInterrupt: there was an interrupt; the report is written, unless there were two
        """
        if self.schema:
            _print_schema()
            return
        if self.out is not None:
            make_writable(self.out)
        meter = _Meter(sys.stderr, silent=self.quiet or not sys.stderr.isatty())
        interrupts = _Interrupts(meter)
        with tempfile.TemporaryDirectory(prefix="kcoord-") as folder:
            sources = [
                _seekable(source, Path(folder, f"pipe-{at}", "stdin")) for at, source in enumerate(self.source, 1)
            ]
            with _rare_collections(), nullcontext() if self.spark_master else interrupts.noted():
                try:
                    analysis = _histories(self, sources, meter, interrupts.has_come)
                finally:
                    meter.clear()
                interrupts.then = "the report is complete, and is written first"
                with interrupts.noted():
                    _report(analysis, self)
        if interrupts.has_come():
            raise KeyboardInterrupt


def _report(analysis: Analysis, args: Analyze) -> None:
    if partial := _partial(analysis):
        complain(f"PARTIAL: {partial}")
    if not analysis.histories:
        raise ValueError(_why_empty(analysis, args))
    if args.out is not None:
        _write(analysis, args, args.out)
    _print(analysis, args)
    _warn_of_gaps(analysis)


def _warn_of_gaps(analysis: Analysis) -> None:
    gaps = sum(loss.count for loss in analysis.losses if _GAP in loss.what)
    if gaps:
        complain(
            f"bytes are missing from the capture in {gaps:,} places, and rebalances may be missing with them: "
            "capture whole packets (tcpdump -s 0) and drop none (tcpdump -B 65536)"
        )


def _partial(analysis: Analysis) -> str:
    """What an interrupt has kept out of the report; empty if it is whole."""
    parts = []
    if analysis.stopped is not None:
        parts.append(f"reading was stopped at {analysis.stopped:.0%}, this is of the part that was read")
    if analysis.left_out:
        parts.append(f"the analysis was stopped, {analysis.left_out:,} more of the sources' groups are not in it")
    return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class ExplainLine(Command):
    """Explain lines that brokers and clients log about consumer groups.

    examples:
      kcoord explain-line 'Attempt to heartbeat failed since group is rebalancing'
          what the line means, whether it is an error, and what to look at
      kubectl logs app-0 | kcoord explain-line --format json
          each known line of standard input as one JSON object
    """

    line: Annotated[tuple[str, ...], Argument("LINE", "a line, as it was logged; standard input if left out")] = ()
    format: Format = "text"

    def run(self) -> None:
        """Explain each line.

        :raises ValueError: none is of a known kind
        """
        from kcoord_wire.forensics.lines.meanings import explain_line

        known = 0
        for line in self.line or _lines_of_stdin():
            explained = explain_line(line)
            known += explained is not None
            if self.format == "json" and explained is not None:
                print_json(_as_json(line, explained))
            elif self.format == "text" and (explained is not None or self.line):
                print("\n".join(_as_text(line, explained)))
        if not known:
            raise ValueError("no line of a known kind: see the sources that docs/analyze.md names")


def _seekable(source: str, place: Path) -> str:
    """The path of a file with the bytes of `source`: standard input and pipes are copied to `place`."""
    if source != "-" and not (os.path.exists(source) and stat.S_ISFIFO(os.stat(source).st_mode)):
        return source
    place.parent.mkdir()  # reports name the last two parts of a path
    with place.open("wb") as file, _until_interrupted(source):
        if source == "-":
            shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            with open(source, "rb") as pipe:
                shutil.copyfileobj(pipe, file)
    return str(place)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cyclic garbage 70 times less often than Python does: imports and rows make hardly any.

    Saves a small capture a twentieth of its processor time or more, and costs at most 4 MB.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_AT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _until_interrupted(source: str) -> Iterator[None]:
    """Let an interrupt end the copying, so that what has come is read: it often ends the writer of the pipe as well."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"{'standard input' if source == '-' else source}: interrupted; what has come so far is read")


class _Interrupts:
    """Notes the first interrupt; a second one ends the command as usual.

    :ivar then: what follows from one, for the user
    """

    def __init__(self, meter: _Meter) -> None:
        self.then = "what was read so far is analysed and written"
        self._meter = meter
        self._has_come = self._is_noting = False

    def has_come(self) -> bool:
        """Whether there was one."""
        return self._has_come

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an interrupt during the block; within another such block, that one does."""

        def note(number: int, _: object) -> None:
            self._has_come = True
            signal.signal(signal.SIGINT, before)
            self._meter.clear()
            complain(f"stopping: {self.then}; interrupt again to end at once")

        before = signal.getsignal(signal.SIGINT)
        if self._is_noting or threading.current_thread() is not threading.main_thread():
            yield  # only the main thread receives signals
            return
        self._is_noting = True
        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _why_empty(analysis: Analysis, args: Analyze) -> str:
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


def _print_schema() -> None:
    import json

    from kcoord_wire.report import json_schema

    print(json.dumps(json_schema(), indent=2))


def _print(analysis: Analysis, args: Analyze) -> None:
    if args.format == "json":
        from kcoord_wire.report import write_json

        write_json(analysis.histories, analysis.losses, sys.stdout, stopped=analysis.stopped)
    else:
        from kcoord_wire.report import print_summary

        print_summary(analysis.histories, analysis.losses, sys.stdout)
        if args.out is not None:
            print(f"\n{args.out / 'report.html'}")
    sys.stdout.flush()


def _histories(args: Analyze, sources: list[str], meter: _Meter, stop: Stop) -> Analysis:
    require("pyarrow", "analyze", "analyze")
    judge = _judge(args)
    if args.spark_master is not None:
        require("pyspark", "spark", "--spark-master")
        from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC
        from kcoord_wire.spark.analysis import analyze_on_spark

        with _spark_errors(args.spark_master):
            analysis = analyze_on_spark(
                sources,
                kafka=args.kafka,
                kafka_config=dict(args.kafka_config),
                topic=args.topic or OFFSETS_TOPIC,
                master=args.spark_master,
                ports=args.port or None,
                groups=args.group or None,
                progress=meter.show,
                judge=judge,
                timezone=args.timezone,
                max_expansion=args.max_expansion,
            )
        _ask_for_lag(analysis, args)
        return analysis
    _leave_pandas_out()
    from kcoord_wire.forensics.analysis import analyze, analyze_records

    kafka = args.kafka
    if kafka is not None:
        from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC, read_topic

        config: Mapping[str, str] = dict(args.kafka_config)
        read = [0, 1]  # offsets: done, and those there are

        def show(done: int, total: int) -> None:
            read[:] = done, total
            meter.show(kafka, done, total)

        batches = read_topic(kafka, config, topic=args.topic or OFFSETS_TOPIC, progress=show)
        analysis = analyze_records(batches, groups=args.group or None, judge=judge, stop=stop)
        if not stop():
            _ask_for_lag(analysis, args)
        elif not analysis.left_out:
            analysis.stopped = read[0] / max(1, read[1])
        return analysis
    return analyze(
        sources,
        ports=args.port or None,
        groups=args.group or None,
        progress=meter.show,
        judge=judge,
        stop=stop,
        timezone=args.timezone,
        max_expansion=args.max_expansion,
    )


class _NoPandas:
    """Refuses the import of pandas."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ImportError(name)


def _leave_pandas_out() -> None:
    """Keep Arrow from importing pandas at its first array, where it is installed: a quarter of this command's time."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([0])  # Arrow tries once
        finally:
            sys.meta_path.remove(_NoPandas)


def _judge(args: Analyze) -> ClaimRules | None:
    """The rules for logs of Marshal; None for those by default, since few sources are such logs."""
    if (args.marshal_rules, args.heartbeat_interval) == (Analyze.marshal_rules, Analyze.heartbeat_interval):
        return None
    from kcoord_wire.forensics.marshal.reader import ClaimRules

    return ClaimRules(args.marshal_rules, args.heartbeat_interval)


def _ask_for_lag(analysis: Analysis, args: Analyze) -> None:
    """Add the lag of now to what the live log of offsets showed; without an answer, say so and go on."""
    from kcoord_wire.forensics.analysis import add_lag
    from kcoord_wire.forensics.sources.live import OFFSETS_TOPIC, TopicError, read_lag

    if args.kafka is None or args.topic not in (None, OFFSETS_TOPIC):
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


def _write(analysis: Analysis, args: Analyze, out: Path) -> None:
    title = args.kafka or first_of("stdin" if source == "-" else Path(source).name for source in args.source)
    counts = {name: analysis.counts.get(name, 0) for name in ("sources", "frames", "records", "lines")}
    source = ", ".join(f"{count:,} {name if count != 1 else name[:-1]}" for name, count in counts.items() if count)
    if partial := _partial(analysis):
        source = f"PARTIAL: {partial}. {source}"
    write_report(analysis.histories, analysis.losses, out, title=title, source=source, stopped=analysis.stopped)


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


# ---- lines


def _lines_of_stdin() -> Iterator[str]:
    """Yield the lines, each as far as it is read."""
    from kcoord_wire.forensics.lines.wrapping import MAX_LINE

    while line := sys.stdin.buffer.readline(MAX_LINE):
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _as_text(line: str, explained: Explained | None) -> Iterator[str]:
    yield printable(line.strip())
    if explained is None:
        yield "  not known"
        return
    stated = ", ".join(f"{name} {value}" for name, value in explained.stated.items() if value is not None)
    yield f"  what:     {explained.meaning.says} ({explained.program})"
    if stated:
        yield f"  it names: {printable(stated)}"
    yield f"  an error: {explained.meaning.is_error}"
    yield f"  look at:  {explained.meaning.look}"


def _as_json(line: str, explained: Explained) -> dict[str, Any]:
    meaning = explained.meaning
    return {
        "line": line,
        "kind": explained.kind,
        "program": explained.program,
        "says": meaning.says,
        "is_error": meaning.is_error,
        "look": meaning.look,
        **explained.stated,
    }
