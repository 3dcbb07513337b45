"""`kcoord record`: a proxy that records the frames between Kafka clients and their brokers.

Laws:

* When it is ready it prints one line with its address on stdout. The log and the counters go to stderr, the counters
  every `--progress` seconds and once at the end.
* SIGTERM and Ctrl-C close the file before the process ends, with status 0 after SIGTERM and 130 after Ctrl-C. The
  status is 1 if the recording failed meanwhile, although clients were served on. A second signal kills at once.
"""

from __future__ import annotations

import argparse
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoord_wire.cli.arguments import add_command, argument, parse_seconds, parse_size
from kcoord_wire.cli.output import complain
from kcoord_wire.cli.process import allow_many_connections, log_to_stderr, until_terminated
from kcoord_wire.kernel.net import parse_address

if TYPE_CHECKING:
    import ssl

    from kcoord_wire.recorder.proxy import Recorder

EXAMPLES = """\
examples:
  kcoord record --upstream 127.0.0.1:9092 --listen 127.0.0.1:19092 --out recording
      clients connect to port 19092; frames go to recording/frames-000001.kcrec and so on
  kcoord record --upstream kafka-1:9093 --upstream-tls --upstream-ca ca.pem --out recording --ports 19100-19120
      brokers behind TLS; each broker of the cluster has one of these ports here
  kcoord record --upstream kafka-1:9092 --no-rewrite --apis all --out recording
      responses unchanged: clients connect directly to the other brokers that they learn of

--apis group records group requests, Metadata, ApiVersions and ListOffsets, and of Fetch, once a second, where clients
read and where partitions end, without the data; all records Produce and Fetch as well, with the users' data. Passwords
(SaslAuthenticate) are never recorded. SASL passes through unchanged, except for mechanisms that
bind the broker's name (GSSAPI).
A client that learns of a new leader from a Produce or Fetch response (KIP-951) may produce and fetch past the proxy;
group traffic always goes through it.
If the disk fails or is too slow, clients are served on and the recording stops. SIGTERM ends with status 0, Ctrl-C
with 130
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "record the frames between Kafka clients and brokers, as a proxy"
    command = add_command(commands, "record", about, _run, examples=EXAMPLES)
    command.add_argument(
        "--listen",
        type=argument(_address),
        default="127.0.0.1:19092",
        metavar="HOST:PORT",
        help="where clients connect; port 0 takes a free one (default: %(default)s)",
    )
    command.add_argument("--upstream", type=argument(_address), required=True, metavar="HOST:PORT", help="a broker")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("recording"),
        metavar="DIR",
        help="folder of the recording (default: %(default)s)",
    )
    command.add_argument(
        "--apis", choices=("group", "all"), default="group", help="the apis to record (below; default: %(default)s)"
    )
    command.add_argument(
        "--no-rewrite",
        action="store_true",
        help="change no response: clients bypass the proxy once they know the brokers",
    )
    command.add_argument(
        "--ports",
        type=argument(_ports),
        metavar="FIRST-LAST",
        help="ports for the brokers named in responses (default: free ones)",
    )
    command.add_argument(
        "--advertise", metavar="HOST", help="host that clients connect to (default: where they have connected)"
    )
    command.add_argument("--upstream-tls", action="store_true", help="speak TLS with the brokers")
    command.add_argument(
        "--upstream-ca", type=Path, metavar="FILE", help="PEM certificates to trust (default: the system's)"
    )
    command.add_argument(
        "--upstream-cert", type=Path, metavar="FILE", help="PEM certificate chain to present to the brokers"
    )
    command.add_argument("--upstream-key", type=Path, metavar="FILE", help="its PEM key, if not in the same file")
    command.add_argument("--upstream-insecure", action="store_true", help="do not check the brokers' certificates")
    command.add_argument(
        "--max-frame",
        type=argument(parse_size),
        default=16 << 20,
        metavar="SIZE",
        help="record only the beginning of a larger frame (default: 16M)",
    )
    command.add_argument(
        "--max-file",
        type=argument(parse_size),
        default=256 << 20,
        metavar="SIZE",
        help="begin the next file at this size (default: 256M)",
    )
    command.add_argument(
        "--max-file-seconds",
        type=argument(parse_seconds),
        metavar="SECONDS",
        help="or at this age of a file (default: never)",
    )
    command.add_argument("--fsync", action="store_true", help="sync each write to disk, every few milliseconds")
    command.add_argument(
        "--progress", type=argument(parse_seconds), metavar="SECONDS", help="interval of the counters on stderr"
    )


def _address(text: str) -> str:
    parse_address(text)
    return text


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last) <= 65_535:
        raise ValueError(f"{text!r} is not of the form FIRST-LAST, two ports")
    return int(first), int(last)


def _run(args: argparse.Namespace) -> None:
    """Record until a signal comes.

    :raises OSError: the port, the folder or a file cannot be used, or the recording failed
    :raises ValueError: the arguments contradict each other, or a host is unknown
    :raises KeyboardInterrupt: after Ctrl-C, when the file is closed
    """
    from kcoord_wire.recorder.context import RelayLimits
    from kcoord_wire.recorder.proxy import Recorder

    recorder = Recorder(
        args.upstream,
        listen=args.listen,
        folder=args.out,
        apis=args.apis,
        rewrite=not args.no_rewrite,
        ports=args.ports,
        advertise=args.advertise,
        tls=_tls(args),
        limits=RelayLimits(max_frame=args.max_frame),
        max_file_bytes=args.max_file,
        max_file_seconds=args.max_file_seconds,
        fsync=args.fsync,
    )
    log_to_stderr()
    allow_many_connections()
    began: float | None = None
    try:
        with until_terminated():
            recorder.start()
            began = time.monotonic()
            host = parse_address(args.listen)[0]
            if host not in ("localhost", "::1") and not host.startswith("127."):
                complain(
                    f"{host or 'every address'} is reachable from other machines: anybody who can connect there "
                    "reaches the brokers, over a connection without encryption"
                )
            print(f"kcoord records on {recorder.address} what goes to {args.upstream}, in {args.out}", flush=True)
            while not recorder.wait(args.progress):
                _print_counters(recorder, began)
    except socket.gaierror as error:
        raise ValueError(f"--listen {args.listen}: {error.strerror}") from error
    finally:
        recorder.stop()
        if began is not None:
            _print_counters(recorder, began)
    if recorder.failure is not None:
        raise OSError(f"{args.out}: the recording is not complete: {recorder.failure.strerror or recorder.failure}")


def _print_counters(recorder: Recorder, began: float) -> None:
    c = recorder.counters
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


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    files = [args.upstream_ca, args.upstream_cert, args.upstream_key]
    if not args.upstream_tls:
        if any(files) or args.upstream_insecure:
            raise ValueError("--upstream-ca, -cert, -key and -insecure need --upstream-tls")
        return None
    if args.upstream_key is not None and args.upstream_cert is None:
        raise ValueError("--upstream-key needs --upstream-cert")
    import ssl

    for path in filter(None, files):
        path.open("rb").close()  # names a missing file; ssl's own errors do not
    try:
        context = ssl.create_default_context(cafile=args.upstream_ca)
    except ssl.SSLError as error:
        raise ValueError(f"{args.upstream_ca}: not PEM certificates: {error}") from None
    if args.upstream_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if args.upstream_cert is not None:
        try:
            context.load_cert_chain(args.upstream_cert, args.upstream_key, password="")
        except ssl.SSLError as error:
            raise ValueError(f"{args.upstream_cert}: not a certificate with its key: {error}") from None
    return context
