"""`kcoord decode`, `kcoord explain` and `kcoord schemas`: the fields of a message, the bytes that hold them, and the
messages that there are."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import kcoord_wire as kw
from kcoord_wire.cli.options import Argument, Command, Format, Option, UsageError, whole
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.codec.fields import fields_of
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.extras import require
from kcoord_wire.protocol.api_keys import api_name
from kcoord_wire.protocol.wording import near_names
from kcoord_wire.schema.describe import FieldFacts, about_paragraphs, describe_fields
from kcoord_wire.schema.model import Versions

DIRECTIONS: Final = ("request", "response")
_COLUMNS: Final = ("field", "type", "versions", "default", "marks", "KIP", "about")
_WIDTH: Final = 100  # of a description


@dataclass(frozen=True, kw_only=True)
class _Message(Command):
    input: Annotated[str, Argument("HEX|FILE|-", "hex digits, or a file (- for stdin) of bytes or hex digits")]
    api: Annotated[
        str | None, Option("api key or name: 11, JoinGroup, JoinGroupRequest, ConsumerProtocolSubscription")
    ] = None
    version: Annotated[int | None, whole(0, 0x7FFF), Option("the message's version", "N")] = None
    request: Annotated[bool, Option("it is the request", one_of="side")] = False
    response: Annotated[bool, Option("it is the response", one_of="side")] = False
    body: Annotated[bool, Option("the input has a header before the message", one_of="extent")] = False
    frame: Annotated[bool, Option("the input has a size and a header before the message", one_of="extent")] = False
    lenient: Annotated[bool, Option("accept what Kafka accepts, not only what it writes")] = False
    format: Format = "text"

    @property
    def direction(self) -> str | None:
        """``request``, ``response``, or None if no option says it."""
        return "request" if self.request else "response" if self.response else None


@dataclass(frozen=True, kw_only=True)
class Decode(_Message):
    """Show the fields of a message.

    examples:
      kcoord decode 000b000900000001000266310007... --body
          a request with its header, which says what it is
      kcoord decode response.bin --api Heartbeat --response --version 4 --format json
          the message alone, from a file
    """

    def run(self) -> None:
        """Print the fields of each part."""
        for codec, version, data, base in _parts(self):
            try:
                message = codec.decode(data, version, strict=not self.lenient)
            except kw.DecodeError as error:
                raise kw.DecodeError(error.kind, error.offset + base, error.path, error.detail) from None
            if self.format == "json":
                value = kw.to_dict(message, version, json=True)
                print_json({"message": codec.name, "version": version, "value": value})
                continue
            made = table(f"{codec.name} v{version}", "field", "value")
            for path, text in fields_of(message, version):
                made.add_row(styled(path), styled(text))
            print_table(made)


@dataclass(frozen=True, kw_only=True)
class Explain(_Message):
    """Show which bytes of a message hold which field.

    examples:
      kcoord explain frame.bin --frame
          from a file with the size before the header
      kcoord explain 0001ff --api 12 --response --version 0
          as far as the bytes can be read, and why no further
    """

    def run(self) -> None:
        """Print the bytes of each part."""
        require("construct", "explain", "explain")
        from kcoord_wire.codec.explain import explain

        for codec, version, data, base in _parts(self):
            explanation = explain(data, codec.cls, version, strict=not self.lenient)
            if self.format == "json":
                print_json({"offset": base, **explanation.to_json()})
            else:
                where = f", from byte {base} of the input" if base else ""
                head, _, rest = str(explanation).partition("\n")
                print(f"{head}{where}\n{rest}\n")
            if explanation.error is not None:
                sys.stdout.flush()
                raise explanation.error


@dataclass(frozen=True, kw_only=True)
class Schemas(Command):
    """List the messages, or show the fields of one.

    examples:
      kcoord schemas
          every message, with its versions
      kcoord schemas JoinGroupRequest --format json
          the fields of one, as a JSON object
    """

    name: Annotated[str | None, Argument("NAME", "api key or name of a message")] = None
    format: Format = "text"

    def run(self) -> None:
        """Print the list, or the messages that the name may mean."""
        if self.name is None:
            _list_messages(self.format)
            return
        for codec in find_messages(self.name):
            _show_message(codec, self.format)


# ---- the parts of the input


def _parts(args: _Message) -> Iterator[tuple[kw.MessageCodec, int, bytes, int]]:
    """Each header and message of the input: codec, version, bytes, and their offset in the input."""
    data = _read_bytes(args.input)
    if not (args.body or args.frame):
        yield *_named_codec(args, data), data, 0
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


def _codec_of(body: bytes, args: _Message) -> tuple[kw.MessageCodec, int]:
    """The message of a body: the arguments name it, or the header of a request does."""
    if args.api is not None or args.direction == "response":
        return _named_codec(args, body)
    header = kw.peek_request(body)
    version = header.request_api_version
    if args.version not in (None, version):
        raise UsageError(f"the header has version {version}, not {args.version}: leave out --version")
    try:
        return kw.registry.request(header.request_api_key), version
    except KeyError:
        key = header.request_api_key
        raise ValueError(f"{api_name(key)} (api key {key}) has no schema here") from None


_OR_A_HEADER: Final = ", or --body or --frame where a header precedes the message (see kcoord decode --help)"


def _what_it_begins_with(data: bytes) -> str:
    """Return the option for an input that begins with a size, or with a request's header; "" for another one."""
    if len(data) - SIZE_BYTES == int.from_bytes(data[:SIZE_BYTES], "big"):
        return "the input begins with the size of its rest: give --frame, and --api if it is a response"
    try:
        header = kw.peek_request(data)
        codec = kw.registry.request(header.request_api_key)
    except (KeyError, kw.DecodeError):
        return ""
    version = header.request_api_version
    is_known = version in codec.valid_versions
    return f"the input begins as the header of {codec.name} v{version}: give --body" if is_known else ""


def _named_codec(args: _Message, data: bytes) -> tuple[kw.MessageCodec, int]:
    if args.api is None:
        raise UsageError(_what_it_begins_with(data) or f"give --api{_OR_A_HEADER}")
    found = find_messages(args.api, args.direction)
    if len(found) > 1:
        names = ", ".join(f"{codec.family}/{codec.name}" for codec in found)
        raise UsageError(f"--api {args.api} is one of {names}: give --request, --response or the whole name")
    if args.version is not None:
        return found[0], args.version
    versions = found[0].valid_versions
    if len(versions) != 1:
        raise UsageError(f"give --version: {found[0].name} has {versions.start} to {versions.stop - 1}")
    return found[0], versions.start


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
        near = ", ".join(near_names(name, kw.registry, 3))
        raise ValueError(f"there is no {direction or 'message'} {name!r}" + (f"; there is {near}" if near else ""))
    return found


# ---- schemas


def _place(codec: kw.MessageCodec) -> tuple[bool, str, bool, int, str]:
    """The order of the list: Kafka's own first, requests and responses by api key, then the others by name."""
    return codec.family != "kafka", codec.family, codec.type not in DIRECTIONS, codec.api_key or 0, codec.name


def _list_messages(form: str) -> None:
    order = sorted(kw.registry.values(), key=_place)
    if form == "json":
        for codec in order:
            print_json(_head(codec))
        return
    made = table("", "api key", "message", "versions", "flexible", "family", "kind")
    for codec in order:
        key = "" if codec.api_key is None else str(codec.api_key)
        versions = _range(codec.valid_versions), _range(codec.flexible_versions)
        made.add_row(key, codec.name, *versions, codec.family, codec.type)
    print_table(made)


def _head(codec: kw.MessageCodec) -> dict[str, Any]:
    return {
        "name": codec.name,
        "api_key": codec.api_key,
        "family": codec.family,
        "type": codec.type,
        "versions": list(codec.valid_versions),
        "flexible": list(codec.flexible_versions),
    }


def _show_message(codec: kw.MessageCodec, form: str) -> None:
    rows = list(describe_fields(codec.schema))
    about = about_paragraphs(codec.schema)
    if form == "json":
        last = codec.valid_versions[-1]
        print_json({**_head(codec), "about": "\n".join(about), "fields": [_field_json(row, last) for row in rows]})
        return
    key = "" if codec.api_key is None else f", api key {codec.api_key}"
    flexible = f", flexible {_range(codec.flexible_versions)}" if codec.flexible_versions else ""
    made = table(f"{codec.name}{key}, versions {_range(codec.valid_versions)}{flexible}", *_COLUMNS)
    for row in rows:
        kips = ", ".join(map(str, row.kips))
        field = row.field
        cells = row.path, str(field.type), str(row.versions), row.default_text, _marks(row), kips, field.about
        made.add_row(*map(styled, cells))
    print(*(textwrap.fill(line, _WIDTH) for line in about), "", sep="\n")
    print_table(made)


def _field_json(row: FieldFacts, last: int) -> dict[str, Any]:
    """A field; `until` is the last version that has it, null while the newest one does."""
    return {
        "field": row.path,
        "type": str(row.field.type),
        "versions": str(row.versions),
        "since": row.versions.low if row.versions else None,
        "until": None if last in row.versions or not row.versions else row.versions.high,
        "nullable": _text(row.nullable),
        "tag": row.field.tag,
        "tagged": _text(row.tagged),
        "ignorable": row.field.ignorable,
        "default": row.default,
        "kips": list(row.kips),
        "about": row.field.about,
    }


def _text(versions: Versions) -> str | None:
    return str(versions) if versions else None


def _marks(row: FieldFacts) -> str:
    marks = [f"tag {row.field.tag} in {row.tagged}"] if row.tagged else []
    marks += [f"null in {row.nullable}"] if row.nullable else []
    marks += ["ignorable"] if row.field.ignorable else []
    return ", ".join(marks)


def _range(versions: range) -> str:
    if not versions:
        return ""
    return str(versions.start) if len(versions) == 1 else f"{versions.start}-{versions.stop - 1}"
