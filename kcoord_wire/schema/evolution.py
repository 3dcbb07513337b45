"""What changed between two states of the schemas, and whether peers built from them still understand each other.

The rules are those of the checker in Kafka's generator (generator/.../message/checker), in terms of versions: what both
states have must mean the same bytes in both.

=====================  =====================================================================================
of a message           its type, api key, family, header, encoding and length types stay
`validVersions`        neither end may fall; a message cannot be removed
`flexibleVersions`     may only grow, and only by new versions
of a field             its type, default and tag stay, and its position among the fields of both states
an array's element     may become a struct whose only field, in the common versions, is the old element
`versions`             of a field that is not tagged: the same in the versions that both states have
`nullableVersions`,    the same; and all three ranges of a field must overlap the message's valid versions
`taggedVersions`
a new field            is tagged, or only in new versions
a removed field        was only in versions that were removed, or in none
=====================  =====================================================================================

Changes that break no rule are listed too, as compatible: new messages, versions and fields, and keys that do
not affect the wire (`ignorable`, `mapKey`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kcoord_wire.schema.files import load_messages
from kcoord_wire.schema.model import Field, Message, Struct, Versions

Severity = Literal["incompatible", "compatible"]

_FIXED: Final = {
    "type": "type",
    "api_key": "apiKey",
    "family": "family",
    "header": "header",
    "encoding": "encoding",
    "text_type": "textType",
    "array_length": "arrayLengthType",
    "string_length": "stringLengthType",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    :ivar message: the message's name
    :ivar where: JSON path in the new schema; of something that was removed, in the old one
    :ivar rule: the broken rule, or what changed
    :ivar severity: ``incompatible`` where peers built from the two states misread each other
    """

    message: str
    where: str
    rule: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}: {self.where}: {self.rule}"


def compare(old: Mapping[str, Message], new: Mapping[str, Message]) -> list[Change]:
    """What changed from `old` to `new` (messages by name), in the order of names, then of the schema."""
    changes: list[Change] = []
    for name in sorted({*old, *new}):
        if name not in new:
            changes.append(Change(name, "$", "a message cannot be removed", "incompatible"))
        elif name not in old:
            changes.append(Change(name, "$", "the message is new", "compatible"))
        else:
            changes += _Comparison(old[name], new[name]).message()
    return changes


def compare_folders(old: Path, new: Path) -> list[Change]:
    """`compare` for two folders of schema files, or two files.

    :raises SchemaError: a file breaks a rule of the schema language
    :raises FileNotFoundError: a folder does not exist
    """
    return compare(load_messages(old), load_messages(new))


class _Comparison:
    """The changes between two states of one message.

    :ivar both: the valid versions that the two states share
    :ivar seen: names, old and new, of the structs that were compared
    """

    def __init__(self, old: Message, new: Message) -> None:
        self.old = old
        self.new = new
        self.both = old.versions & new.versions
        self.seen: set[tuple[str, str]] = set()

    def broken(self, where: str, rule: str) -> Change:
        return Change(self.new.name, where, rule, "incompatible")

    def fine(self, where: str, what: str) -> Change:
        return Change(self.new.name, where, what, "compatible")

    def message(self) -> Iterator[Change]:
        old, new = self.old, self.new
        for attribute, key in _FIXED.items():
            before, after = getattr(old, attribute), getattr(new, attribute)
            if before != after:
                yield self.broken(f"$.{key}", f'"{key}" cannot change from {before} to {after}')
        yield from self.valid_versions()
        lost = [version for version in old.flexible & new.versions if version not in new.flexible]
        if lost:
            yield self.broken("$.flexibleVersions", f"flexibleVersions may only grow: {lost[0]} was flexible")
        gained = [version for version in new.flexible & self.both if version not in old.flexible]
        if gained:
            yield self.broken("$.flexibleVersions", f"version {gained[0]} was not flexible and cannot become flexible")
        yield from self.struct(old.root, new.root, "$")

    def valid_versions(self) -> Iterator[Change]:
        where, old, new = "$.validVersions", self.old.versions, self.new.versions
        for end, before, after in (("first", old.low, new.low), ("last", old.high, new.high)):
            if after < before:
                yield self.broken(where, f"the {end} valid version cannot fall from {before} to {after}")
            elif after > before:
                yield self.fine(where, f"the {end} valid version rises from {before} to {after}")

    def struct(self, old: Struct, new: Struct, where: str) -> Iterator[Change]:
        if (old.name, new.name) in self.seen:
            return
        self.seen.add((old.name, new.name))
        before = {field.name: (index, field) for index, field in enumerate(old.fields)}
        after = {field.name: (index, field) for index, field in enumerate(new.fields)}
        for name, (index, field) in before.items():
            if name not in after:
                yield self.gone(field, f"{where}.fields[{index}]")
        place = -1
        for name, (index, field) in after.items():
            path = f"{where}.fields[{index}]"
            yield from self.reaches(field, path)
            if name not in before:
                yield self.added(field, path)
                continue
            was_at, was = before[name]
            if was_at < place:
                yield self.broken(path, f'the fields cannot be reordered: "{name}" came earlier')
            place = max(place, was_at)
            yield from self.field(was, field, path)

    def reaches(self, field: Field, path: str) -> Iterator[Change]:
        ranges = {"versions": field.versions, "nullableVersions": field.nullable, "taggedVersions": field.tagged}
        for key, versions in ranges.items():
            if versions and not versions & self.new.versions:
                yield self.broken(
                    f"{path}.{key}", f"{key} {versions} must overlap the valid versions {self.new.versions}"
                )

    def gone(self, field: Field, path: str) -> Change:
        still = field.versions & self.both
        if still:
            return self.broken(path, f'the field "{field.name}" cannot be removed from version {still.low}')
        return self.fine(path, f'the field "{field.name}" was removed with its versions')

    def added(self, field: Field, path: str) -> Change:
        old_ones = field.versions & self.both
        if field.tagged.covers(old_ones):
            return self.fine(path, f'the field "{field.name}" is new')
        return self.broken(path, f'the field "{field.name}" cannot be added to version {old_ones.low} without a tag')

    def field(self, old: Field, new: Field, path: str) -> Iterator[Change]:
        if old.default != new.default or type(old.default) is not type(new.default):
            yield self.broken(f"{path}.default", f'the default of "{new.name}" cannot change')
        if old.tag is not None and new.tag is not None and old.tag != new.tag:
            yield self.broken(f"{path}.tag", f'the tag of "{new.name}" cannot change from {old.tag} to {new.tag}')
        yield from self.ranges(old, new, path)
        for key, before, after in (
            ("ignorable", old.ignorable, new.ignorable),
            ("mapKey", old.map_key, new.map_key),
        ):
            if before != after:
                yield self.fine(f"{path}.{key}", f'"{key}" of "{new.name}" changes from {before} to {after}')
        yield from self.type(old, new, path)

    def ranges(self, old: Field, new: Field, path: str) -> Iterator[Change]:
        def common(versions: Versions) -> Versions:
            return versions & self.both

        tagged_alone = old.tagged.covers(common(old.versions)) and new.tagged.covers(common(new.versions))
        pairs = [("nullableVersions", old.nullable, new.nullable)]
        if not tagged_alone:
            pairs += [("versions", old.versions, new.versions), ("taggedVersions", old.tagged, new.tagged)]
        for key, before, after in pairs:
            if common(before) != common(after):
                rule = f'"{key}" of "{new.name}" cannot change in versions that both states have: {before} to {after}'
                yield self.broken(f"{path}.{key}", rule)

    def type(self, old: Field, new: Field, path: str) -> Iterator[Change]:
        where = f"{path}.type"
        if old.type.is_struct and new.type.is_struct and old.type.array == new.type.array:
            yield from self.struct(self.old.struct_of(old), self.new.struct_of(new), path)
        elif old.type.base == new.type.base == "union":
            yield from self.union(old, new, path)
        elif old.type != new.type:
            if old.type.array and new.type.array and new.type.is_struct and self.wraps(new, old.type.base):
                yield self.fine(where, f"the elements of {old.type} become structs that contain them")
            else:
                yield self.broken(where, f'the type of "{new.name}" cannot change from {old.type} to {new.type}')

    def wraps(self, field: Field, base: str) -> bool:
        """Whether the elements of `field` are only `base` in the versions that both states have."""
        there = [inner for inner in self.new.struct_of(field).fields if inner.versions & field.versions & self.both]
        return len(there) == 1 and str(there[0].type) == base and not self.new.flexible & field.versions & self.both

    def union(self, old: Field, new: Field, path: str) -> Iterator[Change]:
        after = {variant.tag: (index, variant.struct) for index, variant in enumerate(new.variants)}
        for variant in old.variants:
            if variant.tag not in after:
                yield self.broken(f"{path}.variants", f"the variant {variant.tag} cannot be removed")
            else:
                index, struct = after[variant.tag]
                yield from self.struct(variant.struct, struct, f"{path}.variants[{index}]")
