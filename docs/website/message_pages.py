"""A page for each message, and the lists that lead to them: messages, error codes, and proposals (KIPs).

Laws:

* What a page says is what the schema says (`kcoord_wire.schema.describe`); nothing is written twice.
* The example of a page runs as it stands there, and prints the bytes that the page shows below it.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import kcoord_wire as kw
from docs.website.examples import example
from kcoord_wire.codec.explain import OF_CONNECT
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.schema.describe import FieldFacts, about_paragraphs, describe_fields, refusal_doc, version_notes
from kcoord_wire.schema.model import Message, Refusal, Versions

MESSAGES: Final = "messages"
ERRORS: Final = "errors.md"
PROPOSALS: Final = "kips.md"
# Headings of the list, and whose messages are below each.
GROUPS: Final[Mapping[str, tuple[str, str]]] = {
    "kafka": ("Kafka's requests and responses", "By api key. Kafka 4.4 has the newest version of each."),
    "storage": ("Records of internal topics", "Keys and values of `__consumer_offsets` and `__transaction_state`."),
    "embedded": ("What other messages carry", "In the byte fields of JoinGroup and SyncGroup."),
    "central": (
        "The 0.8 draft",
        "A coordinator that assigned and called its consumers: [central](../docs/central.md).",
    ),
    "rewrite": ("The 0.9 rewrite", "JoinGroup with the assignment in its response: [rewrite](../docs/rewrite.md)."),
    "proposal": (
        "Client-side assignment, as proposed",
        "Where the proposal differs from what was released: [variants](../docs/proposal-variants.md).",
    ),
    "marshal": ("Marshal", "Consumers that coordinate through a topic: [marshal](../docs/marshal.md)."),
}
_WIRE_PAGES: Final = {"central": "wire-draft.md", "rewrite": "wire-rewrite.md", "marshal": "wire-marshal.md"}
_NO_TREE: Final = ("---", "tocdepth: 1", "---")  # the headings of these lists are in no table of contents
_ERROR: Final = re.compile(rf"\b({'|'.join(sorted(ErrorCode.__members__, key=len, reverse=True))})\b")


def emit_message_pages() -> dict[str, str]:
    """Return the text of each page and list by its path in the site's sources."""
    pages = {f"{MESSAGES}/{codec.name}.md": emit_message_page(codec) for codec in kw.registry.values()}
    return pages | emit_lists()


def emit_message_page(codec: kw.MessageCodec) -> str:
    """Return the page of a message; its example is run."""
    return "\n".join(_page(codec)) + "\n"


def emit_lists() -> dict[str, str]:
    """Return the lists that lead to messages, by their paths."""
    codecs = list(kw.registry.values())
    lists = {f"{MESSAGES}/index.md": _list, ERRORS: _errors, PROPOSALS: _proposals}
    return {path: "\n".join(emit(codecs)) + "\n" for path, emit in lists.items()}


def _page(codec: kw.MessageCodec) -> Iterator[str]:
    message = codec.schema
    yield "---"
    yield "orphan: true"
    yield "---"
    yield f"# {codec.name}"
    yield ""
    yield from map(_prose, about_paragraphs(message))
    yield ""
    yield from _head(codec)
    yield ""
    rows = list(describe_fields(message))
    if len(list(message.versions)) > 1:
        yield from _versions(message, rows)
    yield from _fields(message, rows)
    if errors := _named_errors(message):
        yield "## Errors"
        yield ""
        yield "Those that the description names; [all error codes](../errors.md)."
        yield ""
        yield from _error_rows(errors)
        yield ""
    yield from _example(codec)


def _head(codec: kw.MessageCodec) -> Iterator[str]:
    message = codec.schema
    cls = codec.cls
    where = "kcoord_wire" if hasattr(kw, codec.name) else cls.__module__.rpartition(".")[0]
    yield f"- Class: `{where}.{codec.name}`"
    if codec.api_key is not None:
        yield f"- {'Record type' if message.type.startswith('coordinator') else 'Api key'}: {codec.api_key}"
    yield f"- Versions: {_said(message.versions)}{_flexible(message)}"
    if other := _other_side(codec):
        side = {"request": "Answered by", "response": "Answers", "coordinator-key": "Value", "coordinator-value": "Key"}
        yield f"- {side[message.type]}: {_link(other)}"
    if message.header == "kafka" and codec.type in ("request", "response"):
        header = "RequestHeader" if codec.type == "request" else "ResponseHeader"
        yield f"- Before it on the wire: an int32 size, then {_link(header)} {_header_versions(codec)}"
    if message.listeners:
        yield f"- Served by: {', '.join(message.listeners)}"
    if holders := list(_holders(codec.name)):
        yield f"- Carried by: {', '.join(holders)}, behind an int16 version"
    family = _group(codec)
    if family in _WIRE_PAGES:
        yield f"- All of this design's bytes: [{_WIRE_PAGES[family]}](../docs/{_WIRE_PAGES[family]})"


def _flexible(message: Message) -> str:
    flexible = message.flexible & message.versions
    if not flexible:
        return ""
    if flexible == message.versions:
        return ", all in the flexible form"
    return f", from {flexible.low} on in the flexible form"


def _header_versions(codec: kw.MessageCodec) -> str:
    found: dict[int, list[int]] = {}
    for version in codec.valid_versions:
        found.setdefault(codec.header_version(version), []).append(version)
    if len(found) == 1:
        return f"version {next(iter(found))}"
    return ", ".join(f"version {header} ({_span(versions)})" for header, versions in found.items())


def _span(versions: list[int]) -> str:
    return f"for {versions[0]}" if len(versions) == 1 else f"for {versions[0]} to {versions[-1]}"


def _other_side(codec: kw.MessageCodec) -> str:
    swapped = {"request": ("Request", "Response"), "response": ("Response", "Request")}
    swapped |= {"coordinator-key": ("Key", "Value"), "coordinator-value": ("Value", "Key")}
    if codec.type not in swapped:
        return ""
    own, other = swapped[codec.type]
    name = codec.name.removesuffix(own) + other
    return name if name in kw.registry else ""


def _holders(name: str) -> Iterator[str]:
    """Links to the fields that embed a message."""
    outer = next((consumer for consumer, connect in OF_CONNECT.items() if connect == name), name)
    for codec in kw.registry.values():
        for row in describe_fields(codec.schema):
            if row.field.embeds == outer:
                yield f"`{row.path}` of {_link(codec.name)}"


# ---- versions and fields


def _versions(message: Message, rows: list[FieldFacts]) -> Iterator[str]:
    notes = version_notes(message)
    yield "## Versions"
    yield ""
    yield "| version | what it brings | KIP | new fields | fields that are gone |"
    yield "|--:|---|---|---|---|"
    for version in message.versions:
        note = notes.get(version)
        is_first = version == message.versions.low
        new = [] if is_first else [row.path for row in rows if row.versions.low == version and row.versions]
        gone = [row.path for row in rows if row.versions.high == version - 1 and row.versions]
        kips = ", ".join(map(_kip, note.kips)) if note else ""
        cells = _prose(note.text if note else ""), kips, _outermost(new), _outermost(gone)
        yield f"| {version} | {' | '.join(cells)} |"
    yield ""


def _outermost(paths: list[str]) -> str:
    """The fields without those in structs that are listed themselves."""
    listed = [path for path in paths if not any(path.startswith((f"{each}.", f"{each}[].")) for each in paths)]
    return ", ".join(f"`{path}`" for path in listed)


def _fields(message: Message, rows: list[FieldFacts]) -> Iterator[str]:
    yield "## Fields"
    yield ""
    own = [row for row in rows if "." not in row.path]
    if not own:
        yield "It has none."
        yield ""
        return
    yield from _field_table(message, own)
    seen: set[str] = set()
    for row in rows:
        inside = f"{row.path}[]." if row.field.type.array else f"{row.path}."
        parts = {row.field.type.base: inside} if row.field.type.is_struct else {}
        parts |= {variant.struct.name: f"{inside}{variant.struct.name}." for variant in row.field.variants}
        for name, prefix in parts.items():
            if name not in seen:
                seen.add(name)
                yield f"### {name}"
                yield ""
                yield f"In `{row.path}`: {_prose(row.field.about)}"
                yield ""
                within = [each for each in rows if each.path.startswith(prefix)]
                yield from _field_table(message, [each for each in within if "." not in each.path[len(prefix) :]])


def _field_table(message: Message, rows: list[FieldFacts]) -> Iterator[str]:
    yield "| field | type | since | until | null | default | KIP | meaning |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        until = "" if not row.versions or message.versions.high in row.versions else str(row.versions.high)
        null = "" if not row.nullable else "yes" if row.nullable == row.versions else _said(row.nullable)
        since = str(row.versions.low) if row.versions else "never"
        cells = [f"`{row.path.rpartition('.')[2]}`", _type(row), since, until, null, f"`{row.default_text}`"]
        cells += [", ".join(map(_kip, row.kips)), _cell(_meaning(row, _has_kafka_errors(message)))]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _type(row: FieldFacts) -> str:
    field = row.field
    text = str(field.type)
    if field.type.is_struct:
        text = f"[{text.replace('[]', '&#91;&#93;')}](#{field.type.base.lower()})"
    elif field.variants:
        text = " or ".join(f"[{each.struct.name}](#{each.struct.name.lower()})" for each in field.variants)
    if field.embeds is not None:
        text += f" of {_link(field.embeds)}"
    if row.tagged:
        always = row.tagged == row.versions
        text += f", tag {field.tag}" + ("" if always else f" ({_said(row.tagged)})")
    return text


def _meaning(row: FieldFacts, is_kafka: bool) -> str:
    field = row.field
    notes = [_prose(field.about)]
    if is_kafka and row.path.endswith("error_code"):
        notes.append(f"[Error codes](../{ERRORS}).")
    bounds = (("From", field.minimum), ("To", field.maximum), ("At most, in bytes,", field.max_length))
    notes += [f"{word} {bound}." for word, bound in bounds if bound is not None]
    if field.ignorable:
        notes.append("A version without it drops it silently.")
    notes += (_refused(refusal, row.versions) for refusal in field.refused)
    return " ".join(filter(None, notes))


def _refused(refusal: Refusal, versions: Versions) -> str:
    """A rule of `kw.check`."""
    when = "" if refusal.versions.covers(versions) else f" in version {_said(refusal.versions & versions)}"
    rule = f"each {refusal_doc(refusal)}" if refusal.each else refusal_doc(refusal)
    return f"Refused{when} ([{refusal.error}](../{ERRORS}#{refusal.error.lower()})): {_prose(rule)}."


# ---- the example


def _example(codec: kw.MessageCodec) -> Iterator[str]:
    version = codec.valid_versions[-1]
    program = "\n".join(_program(codec, version))
    yield "## Example"
    yield ""
    yield f"Version {version}, each field with a plausible value, and what every byte is:"
    yield ""
    yield f"```python\n{program}\n```"
    yield ""
    yield f"```text\n{run_program(program)}```"


def run_program(program: str) -> str:
    """Return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "example", "exec"), {})
    return out.getvalue()


def _program(codec: kw.MessageCodec, version: int) -> Iterator[str]:
    package = codec.cls.__module__.rpartition(".")[0]
    prefix = "kw." if package == "kcoord_wire.messages" else f"{package.rpartition('.')[2]}."
    body = source_of(example(codec, version), prefix)
    if "UUID(" in body:
        yield "from uuid import UUID"
        yield ""
    yield "import kcoord_wire as kw"
    if prefix != "kw.":
        yield f"from kcoord_wire.messages import {prefix[:-1]}"
    yield ""
    yield f"message = {body}"
    yield f"data = kw.encode(message, version={version})"
    yield f"assert kw.decode({prefix}{codec.name}, data, version={version}) == message"
    yield f"print(kw.explain(data, {prefix}{codec.name}, version={version}))"


def source_of(value: Any, prefix: str, indent: str = "") -> str:
    """Return an expression for a message, a line for each field; `prefix` is before the names of classes."""
    deeper = f"{indent}    "
    if isinstance(value, list):
        items = [source_of(each, prefix, deeper) for each in value]
        if "\n" not in "".join(items):
            return f"[{', '.join(items)}]"
        return "[\n" + "".join(f"{deeper}{item},\n" for item in items) + f"{indent}]"
    if not is_dataclass(value):
        return repr(value)
    changed = [(each.name, getattr(value, each.name)) for each in fields(value) if each.name != "unknown_tags"]
    kind: Any = type(value)
    fresh = kind()
    lines = [
        f"{deeper}{name}={source_of(each, prefix, deeper)},\n"
        for name, each in changed
        if each != getattr(fresh, name)  # the others are left out, as in a program
    ]
    name = f"{prefix}{kind.__name__}"
    return f"{name}(\n{''.join(lines)}{indent})" if lines else f"{name}()"


# ---- the lists


def _group(codec: kw.MessageCodec) -> str:
    folder = codec.schema.file.replace("\\", "/").split("/")[-2]
    return folder if folder in GROUPS else "kafka"


def _list(codecs: list[kw.MessageCodec]) -> Iterator[str]:
    yield "# Messages"
    yield ""
    yield "A page for each: its versions, what each field means, and an example with every byte explained."
    yield f"[Error codes](../{ERRORS}) and [KIPs](../{PROPOSALS}) have lists of their own."
    for group, (title, about) in GROUPS.items():
        own = [codec for codec in codecs if _group(codec) == group]
        yield ""
        yield f"## {title}"
        yield ""
        yield about
        yield ""
        yield from _apis(own) if group == "kafka" else _kinds(own)


def _apis(codecs: list[kw.MessageCodec]) -> Iterator[str]:
    yield "| api key | name | messages | versions | what it does |"
    yield "|--:|---|---|---|---|"
    for codec in sorted(codecs, key=lambda each: each.api_key or 0):
        if codec.type == "request":
            sides = f"[request]({codec.name}.md) [response]({_other_side(codec)}.md)"
            versions = _said(codec.schema.versions)
            name = codec.name.removesuffix("Request")
            yield f"| {codec.api_key} | {name} | {sides} | {versions} | {_first_sentence(codec)} |"
    yield ""
    yield "Before each of them: " + " and ".join(_link(each.name) for each in codecs if each.type == "header") + "."


def _kinds(codecs: list[kw.MessageCodec]) -> Iterator[str]:
    yield "| message | versions | what it is |"
    yield "|---|---|---|"
    for codec in sorted(codecs, key=lambda each: (each.api_key is None, each.api_key or 0, each.name)):
        yield f"| {_link(codec.name)} | {_said(codec.schema.versions)} | {_first_sentence(codec)} |"


def _errors(codecs: list[kw.MessageCodec]) -> Iterator[str]:
    yield from _NO_TREE
    yield "# Error codes"
    yield ""
    yield "Of Kafka's protocol, as `kw.error_codes` has them. [The 0.8 draft](docs/wire-draft.md) and"
    yield "[the 0.9 rewrite](docs/wire-rewrite.md), which were never released, have codes of their own."
    naming: dict[ErrorCode, list[str]] = {}
    for codec in codecs:
        for error in _named_errors(codec.schema):
            naming.setdefault(error, []).append(codec.name)
    for error in ErrorCode:
        yield ""
        yield f"## {error.name}"
        yield ""
        yield f"{int(error)}{', retriable' if error.retriable else ''}. {_prose(error.meaning)}"
        if names := sorted(naming.get(error, [])):
            yield ""
            yield f"Named by {', '.join(_link(name, f'{MESSAGES}/') for name in names)}."


def _error_rows(errors: Iterable[ErrorCode]) -> Iterator[str]:
    yield "| code | name | retry | meaning |"
    yield "|--:|---|---|---|"
    for error in errors:
        retry = "yes" if error.retriable else ""
        yield f"| {int(error)} | [{error.name}](../{ERRORS}#{error.name.lower()}) | {retry} | {_cell(error.meaning)} |"


def _named_errors(message: Message) -> list[ErrorCode]:
    if not _has_kafka_errors(message):
        return []
    text = " ".join([message.about, *(row.field.about for row in describe_fields(message))])
    return sorted({ErrorCode[name] for name in _ERROR.findall(text)} - {ErrorCode.NONE})


def _has_kafka_errors(message: Message) -> bool:
    return message.family not in _WIRE_PAGES


def _proposals(codecs: list[kw.MessageCodec]) -> Iterator[str]:
    yield from _NO_TREE
    yield "# KIPs"
    yield ""
    yield "Kafka Improvement Proposals that the schemas name, with what they brought: versions and fields."
    found: dict[int, dict[str, tuple[list[int], list[str]]]] = {}
    for codec in codecs:
        for version, note in version_notes(codec.schema).items():
            for kip in note.kips:
                found.setdefault(kip, {}).setdefault(codec.name, ([], []))[0].append(version)
        for row in describe_fields(codec.schema):
            for kip in row.kips:
                found.setdefault(kip, {}).setdefault(codec.name, ([], []))[1].append(row.path)
    for kip, messages in sorted(found.items()):
        yield ""
        yield f"## KIP-{kip}"
        yield ""
        for name, (versions, paths) in sorted(messages.items()):
            whole = f", version {' and '.join(map(str, versions))}" if versions else ""
            brought = _outermost(paths)
            yield f"- {_link(name, f'{MESSAGES}/')}{whole}{f': {brought}' if brought else ''}"


# ---- words


def _said(versions: Versions) -> str:
    return str(versions.low) if versions.low == versions.high else f"{versions.low} to {versions.high}"


def _first_sentence(codec: kw.MessageCodec) -> str:
    text = " ".join(codec.schema.about.split())
    return _cell(_prose(re.split(r"(?<=[.])\s", text)[0]))


def _kip(number: int) -> str:
    return f"[{number}](../{PROPOSALS}#kip-{number})"


def _link(name: str, folder: str = "") -> str:
    return f"[{name}]({folder}{name}.md)"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """Text of a schema as Markdown: names of the protocol keep their underscores and angle brackets."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([_*<>\[\]\\])", r"\\\1", part) for part in parts)
