"""`kcoord schemas`: list the messages, or show the fields of one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.cli.arguments import add_command
from kcoord_wire.cli.decode import DIRECTIONS, find_messages
from kcoord_wire.cli.output import print_json, print_table, styled, table
from kcoord_wire.schema.model import Field, Struct
from kcoord_wire.schema.plan import attribute_name

_COLUMNS: Final = ("field", "type", "versions", "marks", "about")


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to those of `kcoord`."""
    command = add_command(commands, "schemas", "list the messages, or show one", _run)
    command.add_argument("name", nargs="?", help="api key or name of a message")
    command.add_argument("--format", choices=("table", "json"), default="table")


def _run(args: argparse.Namespace) -> None:
    if args.name is None:
        _list_messages(args.format)
    else:
        for codec in find_messages(args.name):
            _show_message(codec, args.format)


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
    rows = list(_rows(codec, codec.schema.root, ""))
    if form == "json":
        print_json({**_head(codec), "fields": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]})
        return
    key = "" if codec.api_key is None else f", api key {codec.api_key}"
    flexible = f", flexible {_range(codec.flexible_versions)}" if codec.flexible_versions else ""
    made = table(f"{codec.name}{key}, versions {_range(codec.valid_versions)}{flexible}", *_COLUMNS)
    for row in rows:
        made.add_row(*map(styled, row))
    print_table(made)


def _rows(codec: kw.MessageCodec, struct: Struct, path: str) -> Iterator[tuple[str, str, str, str, str]]:
    """A row per field, depth first, with the columns of `_COLUMNS`."""
    for field in struct.fields:
        name = f"{path}{attribute_name(field.name)}"
        yield name, str(field.type), str(field.versions), _marks(field), field.about
        if field.type.is_struct:
            yield from _rows(codec, codec.schema.struct_of(field), f"{name}[]." if field.type.array else f"{name}.")
        for variant in field.variants:
            yield from _rows(codec, variant.struct, f"{name}.{variant.struct.name}.")


def _marks(field: Field) -> str:
    marks = [f"tag {field.tag} in {field.tagged}"] if field.tag is not None else []
    marks += [f"null in {field.nullable}"] if field.nullable else []
    marks += ["ignorable"] if field.ignorable else []
    return ", ".join(marks)


def _range(versions: range) -> str:
    if not versions:
        return ""
    return str(versions.start) if len(versions) == 1 else f"{versions.start}-{versions.stop - 1}"
