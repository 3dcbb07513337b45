"""`kcoord record`: a proxy that records the frames between Kafka clients and their brokers.

Laws:

* When it is ready it prints one line with its address on stdout. The log and the counters go to stderr, the counters
  every `--progress` seconds and once at the end.
* SIGTERM and Ctrl-C close the file before the process ends, with status 0 after SIGTERM and 130 after Ctrl-C. The
  status is 1 if the recording failed meanwhile, although clients were served on. A second signal kills at once.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from kcoord_wire.cli.options import Command, Option, Seconds, Size, UsageError
from kcoord_wire.cli.output import complain
from kcoord_wire.cli.process import (
    JsonLines,
    allow_many_connections,
    load_certificate,
    log_to_stderr,
    named_host,
    require_files,
    saying_what_is_kept,
    until_terminated,
)
from kcoord_wire.kernel.net import parse_address

if TYPE_CHECKING:
    import ssl

    from kcoord_wire.recorder.proxy import Recorder


def _address(text: str) -> str:
    parse_address(text)
    return text


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last) <= 65_535:
        raise ValueError(f"{text!r} is not of the form FIRST-LAST, two ports")
    return int(first), int(last)


@dataclass(frozen=True, kw_only=True)
class Record(Command):
    """Record the frames between Kafka clients and brokers, as a proxy.

    examples:
      kcoord record --upstream 127.0.0.1:9092 --listen 127.0.0.1:19092 --out recording
          clients connect to port 19092; frames go to recording/frames-000001.kcrec and so on
      kcoord record --upstream kafka-1:9093 --upstream-tls --upstream-ca ca.pem --out recording --ports 19100-19120
          brokers behind TLS; each broker of the cluster has one of these ports here
      kcoord record --upstream kafka-1:9092 --no-rewrite --apis all --out recording
          responses unchanged: clients connect directly to the other brokers that they learn of

    --apis group records group requests, Metadata, ApiVersions and ListOffsets, and of Fetch, once a second, where
    clients read and where partitions end, without the data; all records Produce and Fetch as well, with the users'
    data. Passwords (SaslAuthenticate) are never recorded. SASL passes through unchanged, except for mechanisms that
    bind the broker's name (GSSAPI).
    A client that learns of a new leader from a Produce or Fetch response (KIP-951) may produce and fetch past the
    proxy; group traffic always goes through it.
    If the disk fails or is too slow, clients are served on and the recording stops. SIGTERM ends with status 0, Ctrl-C
    with 130
    """

    listen: Annotated[str, _address, Option("where clients connect; port 0 takes a free one", "HOST:PORT")] = (
        "127.0.0.1:19092"
    )
    upstream: Annotated[str, _address, Option("a broker", "HOST:PORT")]
    out: Annotated[Path, Option("folder of the recording", "DIR")] = Path("recording")
    apis: Annotated[Literal["group", "all"], Option("the apis to record (below)")] = "group"
    no_rewrite: Annotated[bool, Option("change no response: clients bypass the proxy once they know the brokers")] = (
        False
    )
    ports: Annotated[
        tuple[int, int] | None, _ports, Option("ports for the brokers named in responses (default: free)", "FIRST-LAST")
    ] = None
    advertise: Annotated[
        str | None, Option("host that clients connect to (default: where they have connected)", "HOST")
    ] = None
    upstream_tls: Annotated[bool, Option("speak TLS with the brokers")] = False
    upstream_ca: Annotated[Path | None, Option("PEM certificates to trust (default: the system's)", "FILE")] = None
    upstream_cert: Annotated[Path | None, Option("PEM certificate chain to present to the brokers", "FILE")] = None
    upstream_key: Annotated[Path | None, Option("its PEM key, if not in the same file", "FILE")] = None
    upstream_insecure: Annotated[bool, Option("do not check the brokers' certificates")] = False
    max_frame: Annotated[Size, Option("record only the beginning of a larger frame (default: 16M)", "SIZE")] = 16 << 20
    max_file: Annotated[Size, Option("begin the next file at this size (default: 256M)", "SIZE")] = 256 << 20
    max_file_seconds: Annotated[Seconds | None, Option("or at this age of a file (default: never)", "SECONDS")] = None
    fsync: Annotated[bool, Option("sync each write to disk, every few milliseconds")] = False
    progress: Annotated[Seconds | None, Option("interval of the counters on stderr", "SECONDS")] = None
    format: Annotated[
        Literal["text", "json"], Option("of log and counters on stderr: text for people, or JSON, an object a line")
    ] = "text"

    def __post_init__(self) -> None:
        files = (self.upstream_ca, self.upstream_cert, self.upstream_key)
        if not self.upstream_tls and (any(files) or self.upstream_insecure):
            raise UsageError("--upstream-ca, -cert, -key and -insecure need --upstream-tls")
        if self.upstream_key is not None and self.upstream_cert is None:
            raise UsageError("--upstream-key needs --upstream-cert")

    def run(self) -> None:
        """Record until a signal comes.

        :raises OSError: the port, the folder or a file cannot be used, or the recording failed
        :raises ValueError: the arguments contradict each other, or a host is unknown
        :raises KeyboardInterrupt: after Ctrl-C, when the file is closed
        """
        from kcoord_wire.recorder.counters import RelayLimits
        from kcoord_wire.recorder.proxy import Recorder

        recorder = Recorder(
            self.upstream,
            listen=self.listen,
            folder=self.out,
            apis=self.apis,
            rewrite=not self.no_rewrite,
            ports=self.ports,
            advertise=self.advertise,
            tls=_tls(self),
            limits=RelayLimits(max_frame=self.max_frame),
            max_file_bytes=self.max_file,
            max_file_seconds=self.max_file_seconds,
            fsync=self.fsync,
        )
        log_to_stderr(JsonLines() if self.format == "json" else None)
        allow_many_connections()
        began: float | None = None

        def kept() -> str:
            return "" if began is None else f"the recording is in {self.out}: kcoord analyze {self.out}"

        try:
            with saying_what_is_kept(kept), named_host(f"--listen {self.listen}"), until_terminated():
                recorder.start()
                began = time.monotonic()
                host = parse_address(self.listen)[0]
                if host not in ("localhost", "::1") and not host.startswith("127."):
                    complain(
                        f"{host or 'every address'} is reachable from other machines: anybody who can connect there "
                        "reaches the brokers, over a connection without encryption"
                    )
                print(f"kcoord records on {recorder.address} what goes to {self.upstream}, in {self.out}", flush=True)
                while not recorder.wait(self.progress):
                    _print_counters(recorder, began, self.format)
        finally:
            recorder.stop()
            if began is not None:
                _print_counters(recorder, began, self.format)
        if recorder.failure is not None:
            raise OSError(f"{self.out}: the recording is not complete: {recorder.failure.strerror or recorder.failure}")


def _print_counters(recorder: Recorder, began: float, form: str) -> None:
    c = recorder.counters
    if form == "json":
        line = {"event": "counters", "seconds": round(time.monotonic() - began, 3), **asdict(c)}
        print(json.dumps(line), file=sys.stderr, flush=True)
        return
    text = (
        f"{time.monotonic() - began:.0f} s: {c.connections} connections ({c.open} open), "
        f"{c.requests} requests, {c.responses} responses, {(c.request_bytes + c.response_bytes) / 1e6:.1f} MB; "
        f"recorded {c.recorded} in {c.recorded_bytes / 1e6:.1f} MB"
    )
    bad = {
        "not recorded": c.not_recorded,
        "cut": c.cut,
        "responses with addresses left": c.not_rewritten,
        "without a broker": c.unreachable,
        "not Kafka": c.foreign,
    }
    complain(", ".join([text, *(f"{count} {name}" for name, count in bad.items() if count)]))


def _tls(args: Record) -> ssl.SSLContext | None:
    if not args.upstream_tls:
        return None
    import ssl

    require_files(args.upstream_ca, args.upstream_cert, args.upstream_key)
    try:
        context = ssl.create_default_context(cafile=args.upstream_ca)
    except ssl.SSLError as error:
        raise ValueError(f"{args.upstream_ca}: not PEM certificates: {error}") from None
    if args.upstream_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if args.upstream_cert is not None:
        load_certificate(context, args.upstream_cert, args.upstream_key)
    return context
