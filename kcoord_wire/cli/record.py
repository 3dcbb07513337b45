"""`kcoord record`: a proxy between Kafka clients and their brokers that records what they say, as a program.

Laws:

* One line on stdout when it is ready, with its address; everything else is on stderr: what was closed and why, the
  counters every `--progress` seconds, and once at the end.
* SIGTERM and Ctrl-C end it in order, the file closed. The status is 0 after SIGTERM and 130 after Ctrl-C; it is 1 where
  the recording failed on the way, although the clients went on. A second signal ends it at once.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoord_wire.cli.arguments import allow_many_connections, argument, log_to_stderr, until_terminated
from kcoord_wire.net import parse_address

if TYPE_CHECKING:
    import ssl

    from kcoord_wire.recorder.proxy import Recorder

__all__ = ["add_parser"]

EXAMPLES = """\
examples:
  kcoord record --upstream 127.0.0.1:9092 --listen 127.0.0.1:19092 --out recording
      clients connect to port 19092; frames go to recording/frames-000001.kcrec and so on
  kcoord record --upstream kafka-1:9093 --upstream-tls --upstream-ca ca.pem --out recording --ports 19100-19120
      brokers behind TLS; each broker of the cluster has one of these ports here
  kcoord record --upstream kafka-1:9092 --no-rewrite --apis all --out recording
      everything untouched: clients that learn of other brokers go there directly

--apis group records group requests, Metadata and ApiVersions; all records what is produced and fetched as well, which
is the users' data. Passwords (SaslAuthenticate) are never recorded. A SASL client passes as it is, unless the mechanism
binds the broker's name (GSSAPI).
Produced and fetched records of clients that are told of a new leader in an answer to Produce or Fetch (KIP-951) may go
past the proxy; what tells of groups does not.
If the disk fails or is too slow, clients go on and the recording does not. SIGTERM ends with status 0, Ctrl-C with 130
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    about = "record what Kafka clients and brokers say, as a proxy between them"
    command = commands.add_parser(
        "record",
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        "--apis", choices=("group", "all"), default="group", help="what is recorded (below; default: %(default)s)"
    )
    command.add_argument(
        "--no-rewrite",
        action="store_true",
        help="change no answer: clients go past the proxy once they know the brokers",
    )
    command.add_argument(
        "--ports",
        type=_ports,
        metavar="FIRST-LAST",
        help="ports for the brokers that answers name (default: free ones)",
    )
    command.add_argument(
        "--advertise", metavar="HOST", help="host that clients are told (default: where they have connected)"
    )
    command.add_argument("--upstream-tls", action="store_true", help="speak TLS with the brokers")
    command.add_argument(
        "--upstream-ca", type=Path, metavar="FILE", help="PEM certificates to trust (default: the system's)"
    )
    command.add_argument(
        "--upstream-cert", type=Path, metavar="FILE", help="PEM certificate chain to show to the brokers"
    )
    command.add_argument("--upstream-key", type=Path, metavar="FILE", help="its PEM key, if not in the same file")
    command.add_argument("--upstream-insecure", action="store_true", help="do not check the brokers' certificates")
    command.add_argument(
        "--max-frame",
        type=_size,
        default=16 << 20,
        metavar="SIZE",
        help="of a larger frame the beginning (default: 16M)",
    )
    command.add_argument(
        "--max-file", type=_size, default=256 << 20, metavar="SIZE", help="the next file begins then (default: 256M)"
    )
    command.add_argument(
        "--max-file-seconds", type=_seconds, metavar="SECONDS", help="or when a file is so old (default: never)"
    )
    command.add_argument("--fsync", action="store_true", help="make each write durable, every few milliseconds")
    command.add_argument("--progress", type=_seconds, metavar="SECONDS", help="counters on stderr so often")
    command.set_defaults(run=run)


def _address(text: str) -> str:
    parse_address(text)
    return text


def _ports(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form FIRST-LAST, two ports")
    return int(first), int(last)


def _size(text: str) -> int:
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in ("", "K", "M", "G") or not int(digits):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500000, 64K, 16M or 1G")
    return int(digits) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def run(args: argparse.Namespace) -> None:
    """Record until a signal comes.

    :raises OSError: the port, the folder or a file cannot be had, or the recording failed on the way
    :raises ValueError: the arguments do not go together, or a host is unknown
    :raises KeyboardInterrupt: after Ctrl-C, when all is in order
    """
    from kcoord_wire.recorder.proxy import Limits, Recorder

    recorder = Recorder(
        args.upstream,
        listen=args.listen,
        folder=args.out,
        apis=args.apis,
        rewrite=not args.no_rewrite,
        ports=args.ports,
        advertise=args.advertise,
        tls=_tls(args),
        limits=Limits(max_frame=args.max_frame),
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
            if not _is_loopback(host):
                print(f"kcoord: {host or 'every address'} is reachable from elsewhere: all who connect there pass to "
                      "the brokers, and what they say is not encrypted on the way here", file=sys.stderr)  # fmt: skip
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


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


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
        "answers with addresses left": c.not_rewritten,
        "without a broker": c.unreachable,
        "not Kafka": c.foreign,
    }
    print("kcoord:", ", ".join([text, *(f"{count} {name}" for name, count in bad.items() if count)]), file=sys.stderr)


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
        path.open("rb").close()  # so that what is missing is named
    try:
        context = ssl.create_default_context(cafile=args.upstream_ca)
    except ssl.SSLError as error:
        raise ValueError(f"{args.upstream_ca}: no certificates: {error}") from None
    if args.upstream_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if args.upstream_cert is not None:
        try:
            context.load_cert_chain(args.upstream_cert, args.upstream_key, password="")
        except ssl.SSLError as error:
            raise ValueError(f"{args.upstream_cert}: no certificate with its key: {error}") from None
    return context
