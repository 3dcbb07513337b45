"""`kcoord decode` and `kcoord explain`: the fields of a message, and which bytes hold which field."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.cli.arguments import UsageError, add_command
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.codec.fields import fields_of
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.extras import require
from kcoord_wire.protocol.api_keys import api_name

DIRECTIONS: Final = ("request", "response")


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add both commands to those of `kcoord`."""
    _add_arguments(add_command(commands, "decode", "show the fields of a message", _decode))
    _add_arguments(add_command(commands, "explain", "show which bytes of a message hold which field", _explain))


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "input", metavar="HEX|FILE|-", help="hex digits, or a file (- for stdin) of bytes or hex digits"
    )
    command.add_argument("--api", help="api key or name: 11, JoinGroup, JoinGroupRequest, ConsumerProtocolSubscription")
    command.add_argument("--version", type=int, help="the message's version")
    side = command.add_mutually_exclusive_group()
    for direction in DIRECTIONS:
        side.add_argument(
            f"--{direction}", dest="direction", action="store_const", const=direction, help=f"it is the {direction}"
        )
    whole = command.add_mutually_exclusive_group()
    whole.add_argument("--body", action="store_true", help="the input has a header before the message")
    whole.add_argument("--frame", action="store_true", help="the input has a size and a header before the message")
    command.add_argument("--lenient", action="store_true", help="accept what Kafka accepts, not only what it writes")
    command.add_argument("--format", choices=("table", "json"), default="table")


def _decode(args: argparse.Namespace) -> None:
    for codec, version, data, base in _parts(args):
        try:
            message = codec.decode(data, version, strict=not args.lenient)
        except kw.DecodeError as error:
            raise kw.DecodeError(error.kind, error.offset + base, error.path, error.detail) from None
        if args.format == "json":
            print_json({"message": codec.name, "version": version, "value": kw.to_dict(message, version, json=True)})
        else:
            made = table(f"{codec.name} v{version}", "field", "value")
            for path, text in fields_of(message, version):
                made.add_row(styled(path), styled(text))
            print_table(made)


def _explain(args: argparse.Namespace) -> None:
    require("construct", "explain", "explain")
    from kcoord_wire.codec.explain import explain

    for codec, version, data, base in _parts(args):
        explanation = explain(data, codec.cls, version, strict=not args.lenient)
        if args.format == "json":
            print_json({"offset": base, **explanation.to_json()})
        else:
            where = f", from byte {base} of the input" if base else ""
            head, _, rest = str(explanation).partition("\n")
            print(f"{head}{where}\n{rest}\n")
        if explanation.error is not None:
            sys.stdout.flush()
            raise explanation.error


# ---- the parts of the input


def _parts(args: argparse.Namespace) -> Iterator[tuple[kw.MessageCodec, int, bytes, int]]:
    """Each header and message of the input: codec, version, bytes, and their offset in the input."""
    data = _read_bytes(args.input)
    if not (args.body or args.frame):
        yield *_named_codec(args), data, 0
        return
    base = 0
    for body in _bodies(data) if args.frame else [data]:
        base += SIZE_BYTES if args.frame else 0
        codec, version = _codec_of(body, args)
        end = 2 if codec.header == "typeId" else 0
        if codec.header == "kafka":
            header = kw.registry["RequestHeader" if codec.type == "request" else "ResponseHeader"]
            header_version = codec.header_version(version)
            end = header.decode_prefix(body, header_version, strict=not args.lenient)[1]
            yield header, header_version, body[:end], base
        yield codec, version, body[end:], base + end
        base += len(body)


def _bodies(data: bytes) -> Iterator[bytes]:
    framer = kw.Framer()
    yield from framer.feed(data)
    framer.close()


def _read_bytes(source: str) -> bytes:
    """The bytes that an argument means. A file (or stdin) of hex digits alone is read as hex."""
    if source == "-":
        data = sys.stdin.buffer.read()
    elif os.path.exists(source) and not os.path.isdir(source):  # pipes too; pathlib's tests raise on long hex
        data = Path(source).read_bytes()
    else:
        found = _from_hex(source)
        if found is None:
            raise ValueError(f"{source!r} is neither a file nor hex digits")
        return found
    found = _from_hex(data.decode("latin-1"))
    return data if found is None else found


def _from_hex(text: str) -> bytes | None:
    digits = re.sub(r"[\s:]|0x", "", text)
    if len(digits) % 2 or not re.fullmatch("[0-9a-fA-F]*", digits):
        return None
    return bytes.fromhex(digits)


# ---- which message it is


def _codec_of(body: bytes, args: argparse.Namespace) -> tuple[kw.MessageCodec, int]:
    """The message of a body: the arguments name it, or the header of a request does."""
    if args.api is not None or args.direction == "response":
        return _named_codec(args)
    header = kw.peek_request(body)
    try:
        return kw.registry.request(header.request_api_key), header.request_api_version
    except KeyError:
        key = header.request_api_key
        raise ValueError(f"{api_name(key)} (api key {key}) has no schema here") from None


def _named_codec(args: argparse.Namespace) -> tuple[kw.MessageCodec, int]:
    if args.api is None:
        raise UsageError(
            "give --api, or --body or --frame where a header precedes the message (see kcoord decode --help)"
        )
    found = find_messages(args.api, args.direction)
    if len(found) > 1:
        names = ", ".join(f"{codec.family}/{codec.name}" for codec in found)
        raise UsageError(f"--api {args.api} is one of {names}: give --request, --response or the whole name")
    if args.version is None:
        versions = found[0].valid_versions
        if len(versions) != 1:
            raise UsageError(f"give --version: {found[0].name} has {versions.start} to {versions.stop - 1}")
        args.version = versions.start
    return found[0], args.version


def find_messages(name: str, direction: str | None = None) -> list[kw.MessageCodec]:
    """The messages that a name or api key may mean, at least one.

    :param name: ``11``, ``JoinGroup``, ``JoinGroupRequest``, in any case; ``family/Name`` where families share a name
    :param direction: ``request`` or ``response``; None allows any message
    :raises ValueError: there is none
    """
    family, _, wanted = name.rpartition("/")
    wanted = wanted.lower()
    if wanted.isdigit():
        family = family or "kafka"

    def is_meant(codec: kw.MessageCodec) -> bool:
        if codec.type in DIRECTIONS and wanted == str(codec.api_key):
            return True
        return codec.name.lower() in {wanted, *(wanted + side for side in DIRECTIONS)}

    found = [
        codec
        for codec in kw.registry.values()
        if is_meant(codec) and family in ("", codec.family) and direction in (None, codec.type)
    ]
    if not found:
        near = ", ".join(difflib.get_close_matches(name, list(kw.registry), n=3, cutoff=0.5))
        raise ValueError(f"there is no {direction or 'message'} {name!r}" + (f"; there is {near}" if near else ""))
    return found
