"""What is said of a message, its structs and fields: in the documentation of its class, in lists, on pages.

Generated classes and those that are made at run time say the same: what cannot be printed (half of
a surrogate pair cannot even be the docstring of a class) is a space in both.

What a version brings is read from the description of its message, where a clause begins with it: ``v1 adds the
rebalance timeout (KIP-62), v4 ...``. A field has the proposals (KIPs) that its own text names, else those of the clause
of the version in which it begins; one that is there from the first version on has those of the first sentence.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kcoord_wire.schema.model import Field, Message, Refusal, Struct, Versions
from kcoord_wire.schema.plan import attribute_name

_IN_PARENTHESES: Final = re.compile(r"\([^()]*\)")
# Versions at the beginning of a clause: v1; v2, v3 and v7; v8-10.
_VERSIONS: Final = re.compile(
    r"(?:(?<=^)|(?<=[.,;:] )|(?<= and ))(v\d+(?:-\d+)?(?:(?:, | and |, and )v\d+(?:-\d+)?)*) (?=\w)"
)
_END_OF_CLAUSE: Final = re.compile(r"[.;](?= |$)|,? and $|, $")
_KIP: Final = re.compile(r"\bKIP-(\d+)")
_ONLY_FLEXIBLE: Final = re.compile(r"(?:is|are) flexible(?: \([^)]*\))?")
_OF_TAGS: Final = 482  # the proposal of flexible versions, which explains no field


@dataclass(frozen=True, slots=True)
class Note:
    """What the description of a message says of a version, and the numbers of the proposals (KIPs) named there."""

    text: str
    kips: tuple[int, ...]


_SILENT: Final = Note("", ())


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """A field where it stands in a message.

    :ivar path: as `walk_fields` has it
    :ivar versions: the valid versions of the message that have it; empty where none has it any more
    :ivar kips: numbers of the proposals behind it, as far as the schema names them
    """

    path: str
    field: Field
    versions: Versions
    kips: tuple[int, ...]

    @property
    def nullable(self) -> Versions:
        """The versions in which it may be null."""
        return self.field.nullable & self.versions

    @property
    def tagged(self) -> Versions:
        """The versions in which it is a tagged field."""
        return self.field.tagged & self.versions

    @property
    def default(self) -> object:
        """The value of an unset field for a JSON writer: a struct is ``{}``, a uuid hex."""
        value = self.field.default
        if value == () or value is ...:
            return [] if value == () else {}
        if isinstance(value, bytes | uuid.UUID):
            return value.hex if isinstance(value, uuid.UUID) else value.hex()
        return value

    @property
    def default_text(self) -> str:
        """The default as it is shown: JSON, but for a uuid of zeros."""
        return "zeros" if self.field.default == uuid.UUID(int=0) else json.dumps(self.default)


def describe_fields(message: Message) -> Iterator[FieldFacts]:
    """Yield each field of all versions, those of structs behind the field that has them."""
    sentence = _about(message).partition(". ")[0]
    notes, first = version_notes(message), Note(sentence, _kips(sentence))
    above: dict[str, Versions] = {"": message.versions}
    for path, field in walk_fields(message):
        around = path
        while around not in above:
            around = around.rpartition(".")[0].removesuffix("[]")
        versions = above[path] = field.versions & above[around]
        begun = first if versions.low == message.versions.low else notes.get(versions.low, _SILENT)
        kips = _kips(field.about)
        if not kips and versions and not _ONLY_FLEXIBLE.fullmatch(begun.text):
            kips = begun.kips
        yield FieldFacts(path, field, versions, tuple(kip for kip in kips if kip != _OF_TAGS))


def version_notes(message: Message) -> Mapping[int, Note]:
    """Return what the description says of single versions, in ascending order."""
    about = _about(message)
    # What is in parentheses begins no clause, and may hold ends of sentences.
    masked = _IN_PARENTHESES.sub(lambda found: "(" + "_" * (len(found[0]) - 2) + ")", about)
    found = list(_VERSIONS.finditer(masked))
    notes = dict[int, Note]()
    for match, until in zip(found, [*(after.start() for after in found), len(about)][1:], strict=True):
        stop = _END_OF_CLAUSE.search(masked, match.end(), until)
        text = about[match.end() : stop.start() if stop else until].strip()
        versions = list(_each_version(match[1]))
        kips = _kips(text)
        is_each = len(kips) == len(versions) > 1  # v3 and v4 change throttling (KIP-124, KIP-219)
        for at, version in enumerate(versions):
            notes.setdefault(version, Note(text, kips[at : at + 1] if is_each else kips))
    return dict(sorted(notes.items()))


def _each_version(text: str) -> Iterator[int]:
    for low, high in re.findall(r"v(\d+)(?:-(\d+))?", text):
        yield from range(int(low), int(high or low) + 1)


def _kips(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(int, _KIP.findall(text))))


def _about(message: Message) -> str:
    return " ".join(_plain(message.about).split())


def walk_fields(
    message: Message, version: int | None = None, struct: Struct | None = None, path: str = ""
) -> Iterator[tuple[str, Field]]:
    """Yield each field with its path, depth first: ``topics``, ``topics[].name``, ``phase.Join.member_id``.

    :param version: leave out the fields that it does not have; None keeps all
    """
    for field in (struct or message.root).fields:
        if version is not None and version not in field.versions:
            continue
        name = f"{path}{attribute_name(field.name)}"
        yield name, field
        if field.type.is_struct:
            inner = f"{name}[]." if field.type.array else f"{name}."
            yield from walk_fields(message, version, message.struct_of(field), inner)
        for variant in field.variants:
            yield from walk_fields(message, version, variant.struct, f"{name}.{variant.struct.name}.")


def about_paragraphs(message: Message) -> list[str]:
    """Return what the schema says of a message as lines of Markdown; items of a list keep theirs."""
    lines: list[str] = []
    for paragraph in re.split(r"\n(?=\n| *[*-] )", _plain(message.about)):
        lines += [""] * paragraph.startswith("\n") + [" ".join(paragraph.split())]
    return lines


def class_doc(message: Message, struct: Struct) -> str:
    """What the class of `struct` is for, its versions, and a section ``Fields:`` with a line for each."""
    lines = [
        f"- {attribute_name(field.name)} ({field.type}): {field_doc(message, field)}".rstrip(": ")
        for field in struct.fields
    ]
    return "\n".join([_plain(_head(message, struct)), *(["", "Fields:", "", *lines] if lines else [])])


def _head(message: Message, struct: Struct) -> str:
    if struct is not message.root:
        about = struct.about or next(
            (
                f.about
                for s in (message.root, *message.structs.values())
                for f in s.fields
                if f.type.base == struct.name
            ),
            "",
        )
        return f"{_sentence(about)}\n\nVersions {message.versions & struct.versions} of {message.name}."
    flexible = f", flexible {_open(message.flexible, message.versions)}" if message.flexible else ""
    return f"{message.about or message.name}\n\nVersions {message.versions}{flexible}."


def field_doc(message: Message, field: Field) -> str:
    """What `field` is, its versions if the message has others, and its tag."""
    notes = []
    if not field.versions.covers(message.versions):
        notes.append(f"Versions {_open(field.versions & message.versions, message.versions)}.")
    if field.nullable & message.versions and not field.nullable.covers(field.versions & message.versions):
        notes.append(f"Null in versions {_open(field.nullable & message.versions, message.versions)}.")
    if field.tagged:
        notes.append(f"Tagged field {field.tag}.")
    return _plain(" ".join([_sentence(field.about), *notes]).strip())


_RULES: Final[Mapping[str, str]] = {
    "empty": "must not be empty",
    "null": "must not be null",
    "given": "must be null or empty",
    "below": "must be {} or more",
    "above": "must be {} or less",
    "is": "must not be {}",
    "notOneOf": "must be one of {}",
    "unlike": "must match {}",
}


def refusal_doc(refusal: Refusal) -> str:
    """Return the rule that a refusal makes of a field: ``must be 1 or more where member_epoch is 0``."""
    bound = refusal.bound if not isinstance(refusal.bound, tuple) else ", ".join(map(str, refusal.bound))
    rule = _RULES[refusal.when].format(bound)
    places = [
        f"{attribute_name(name)} is {verb}{' or '.join(json.dumps(value) for value in values)}"
        for verb, beside in (("", refusal.beside), ("not ", refusal.not_beside))
        for name, values in beside
    ]
    return f"{rule} where {' and '.join(places)}" if places else rule


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def _open(versions: Versions, valid: Versions) -> str:
    return f"{versions.low}+" if versions.high == valid.high and versions.low != versions.high else str(versions)


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    return text if text[-1] in ".!?:" else text + "."
