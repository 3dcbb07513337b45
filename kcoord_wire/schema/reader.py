"""Schema text to model: every rule of the schema language, and where a file breaks it.

The rules are those of Kafka's generator (MessageSpec, StructSpec, FieldSpec, EntityType; Kafka's
clients/src/main/resources/common/message/README.md) and of the extensions that schemas/README.md lists.
"""

from __future__ import annotations

import base64
import math
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

from kcoord_wire.errors import SchemaError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.schema.model import INTEGERS, NONE, Field, FieldType, Message, Refusal, Struct, Variant, Versions
from kcoord_wire.schema.plan import attribute_name, class_name
from kcoord_wire.schema.text import Node, line_of, parse_text, path_of

PRIMITIVES: Final = (*INTEGERS, "bool", "float64", "string", "uuid", "bytes", "records")
NULLABLE: Final = ("string", "bytes", "records")
ENTITY_TYPES: Final[Mapping[str, str | None]] = {
    "unknown": None,
    "transactionalId": "string",
    "producerId": "int64",
    "groupId": "string",
    "topicName": "string",
    "brokerId": "int32",
}
MESSAGE_TYPES: Final = (
    "request",
    "response",
    "header",
    "metadata",
    "data",
    "coordinator-key",
    "coordinator-value",
)
LISTENERS: Final = ("broker", "controller", "zkBroker")
MAX_STRUCT_DEPTH: Final = 32
MAX_VALUES: Final = 512  # of one struct, those of the structs in it included; the released protocol has 24 at most
UNKNOWN_TAGS: Final = "unknown_tags"  # the attribute of every struct of a message with flexible versions

_MESSAGE_KEYS: Final = frozenset({
    "type", "name", "apiKey", "validVersions", "flexibleVersions", "deprecatedVersions", "listeners",
    "latestVersionUnstable", "commonStructs", "fields", "about", "family", "header", "arrayLengthType",
    "stringLengthType", "encoding", "textType",
})  # fmt: skip
_STRUCT_KEYS: Final = frozenset(("name", "versions", "deprecatedVersions", "fields", "about"))
_VARIANT_KEYS: Final = frozenset(("name", "tag", "fields", "about"))
_FIELD_KEYS: Final = frozenset({
    "name", "type", "versions", "about", "default", "fields", "nullableVersions", "entityType", "ignorable",
    "mapKey", "taggedVersions", "tag", "zeroCopy", "flexibleVersions", "embeds", "minimum", "maximum", "maxLength",
    "presentIfRemaining", "variants", "refused",
})  # fmt: skip
_REFUSAL_KEYS: Final = frozenset({
    "empty", "null", "given", "below", "above", "is", "notOneOf", "unlike", "error", "source", "versions", "beside",
    "notBeside", "each",
})  # fmt: skip
_CONDITIONS: Final[Mapping[str, Callable[[FieldType, Versions], bool]]] = {
    "empty": lambda type_, _: type_.array or type_.base in NULLABLE,
    "null": lambda _, nullable: bool(nullable),
    "given": lambda type_, nullable: type_.array or type_.base == "string" or bool(nullable),
    **dict.fromkeys(("below", "above", "is", "notOneOf"), lambda type_, _: type_.base in INTEGERS and not type_.array),
    "unlike": lambda type_, _: type_.base == "string" and not type_.array,
}
_FIELD_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_FAMILY: Final = re.compile(r"[A-Za-z0-9-]+")
_STRUCT_NAME: Final = re.compile(r"(?!(?:None|True|False)\b)[A-Z][A-Za-z0-9]*")  # a class may have it
_INT: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,32}|[0-9]{1,32})")


def read_message(text: str | bytes, file: str = "<schema>") -> Message:
    """The message that the text of a schema file defines.

    :param text: JSON with comments, one message; bytes are UTF-8
    :param file: the file's name, for errors
    :raises SchemaError: the text breaks a rule of the language
    """
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise SchemaError(f"a schema file is UTF-8 text: {error}", file=file) from None
    root, comments = parse_text(text, file)
    return _Reader(text, file, comments, root).message(root)


def load_message(path: Path) -> Message:
    """The message that the schema file at `path` defines.

    :raises SchemaError: the file is not one, or breaks a rule
    :raises OSError: it cannot be read
    """
    return read_message(path.read_bytes(), str(path))


class _Reader:
    def __init__(self, text: str, file: str, comments: str, top: Node) -> None:
        self.source = text
        self.top = top
        self.file = file
        self.comments = comments
        self.structs: dict[str, Struct] = {}
        self.struct_nodes: dict[str, Node] = {}
        self.struct_types: list[tuple[str, Node]] = []
        self.flexible = NONE
        self.text = False

    def fail(self, node: Node, rule: str) -> NoReturn:
        raise SchemaError(rule, file=self.file, where=path_of(self.top, node), line=line_of(self.source, node.at))

    # Typed access to nodes.

    def members(self, node: Node, keys: frozenset[str], what: str) -> dict[str, Node]:
        if not isinstance(node.value, dict):
            self.fail(node, f"a {what} is a JSON object")
        for key, member in node.value.items():
            if key not in keys:
                self.fail(member, f'a {what} has no key "{key}"')
        return node.value

    def items(self, node: Node | None) -> list[Node]:
        if node is None or node.value is None:
            return []
        return node.value if isinstance(node.value, list) else [node]

    def string(self, node: Node, what: str) -> str:
        if not isinstance(node.value, str):
            self.fail(node, f"{what} must be a string")
        return node.value

    def text_of(self, members: dict[str, Node], key: str, default: str = "") -> str:
        return self.string(members[key], f'"{key}"') if key in members else default

    def choice(self, members: dict[str, Node], key: str, options: tuple[str, ...], default: str) -> str:
        value = self.text_of(members, key, default)
        if value not in options:
            self.fail(members[key], f'"{key}" must be one of {", ".join(options)}')
        return value

    def flag(self, members: dict[str, Node], key: str) -> bool:
        node = members.get(key)
        if node is None:
            return False
        if node.value in ("true", "false"):
            return node.value == "true"
        if not isinstance(node.value, bool):
            self.fail(node, f'"{key}" must be true or false')
        return node.value

    def integer(self, node: Node, low: int, high: int, what: str) -> int:
        value = node.value
        if isinstance(value, str) and _INT.fullmatch(value.strip()):
            value = _parse_int(value.strip())
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(node, f"{what} must be an integer")
        if not low <= value <= high:
            self.fail(node, f"{what} must lie between {low} and {high}")
        return value

    def maybe_integer(self, members: dict[str, Node], key: str) -> int | None:
        return self.integer(members[key], *INTEGERS["int64"], f'"{key}"') if key in members else None

    def versions(self, members: dict[str, Node], key: str, default: Versions) -> Versions:
        node = members.get(key)
        if node is None:
            return default
        text = str(node.value) if isinstance(node.value, int) and not isinstance(node.value, bool) else node.value
        if not isinstance(text, str):
            self.fail(node, f'"{key}" must be a version range')
        if not text.strip():
            return default
        try:
            return Versions.parse(text)
        except ValueError as error:
            self.fail(node, str(error))

    def required(self, node: Node, members: dict[str, Node], key: str, what: str) -> Node:
        if key not in members:
            self.fail(node, f'a {what} needs the key "{key}"')
        return members[key]

    # ---- the message

    def message(self, node: Node) -> Message:
        members = self.members(node, _MESSAGE_KEYS, "message")
        name = self.message_name(node, members)
        self.struct_nodes[name] = node
        self.required(node, members, "type", "message")
        kind = self.choice(members, "type", MESSAGE_TYPES, "")
        versions, flexible = self.message_versions(node, members)
        api_key = self.api_key(node, members, kind, versions, flexible)
        # validVersions "none" only reserves the number, so the other keys are not checked.
        may_listen = kind == "request" or not versions
        listeners = tuple(self.listener(item, may_listen) for item in self.items(members.get("listeners")))
        unstable = self.flag(members, "latestVersionUnstable")
        if unstable and not may_listen:
            self.fail(members["latestVersionUnstable"], "only a request can have latestVersionUnstable")
        encoding = self.choice(members, "encoding", ("binary", "text"), "binary")
        text_type = self.text_type(node, members, encoding)
        self.flexible, self.text = flexible, encoding == "text"
        if self.text and flexible:
            self.fail(members["flexibleVersions"], "a text-encoded message is never flexible")

        for item in self.items(members.get("commonStructs")):
            self.common_struct(item)
        fields = self.fields(node, members, versions, 0) if versions else ()
        root = Struct(name, fields, versions)
        if versions:
            self.check_structs(root, node)
        self.check_optional(root, node)
        message = Message(
            name=name,
            type=kind,
            root=root,
            structs=self.structs,
            versions=versions,
            flexible=flexible & versions,
            api_key=api_key,
            deprecated=self.versions(members, "deprecatedVersions", NONE),
            listeners=listeners,
            latest_unstable=unstable,
            family=self.family(members),
            header=self.choice(members, "header", ("kafka", "typeId", "none"), "kafka"),
            array_length=self.choice(members, "arrayLengthType", ("int16", "int32"), "int32"),
            string_length=self.choice(members, "stringLengthType", ("int16", "int32"), "int16"),
            encoding=encoding,
            text_type=text_type,
            about=self.text_of(members, "about") or self.comments,
            file=self.file,
            source=self.source,
        )
        self.check_classes(message, node)
        return message

    def message_name(self, node: Node, members: dict[str, Node]) -> str:
        name_node = self.required(node, members, "name", "message")
        name = self.string(name_node, '"name"')
        if not _STRUCT_NAME.fullmatch(name):
            self.fail(name_node, f'"{name}" is not a message name: an upper-case letter, then letters and digits')
        return name

    def message_versions(self, node: Node, members: dict[str, Node]) -> tuple[Versions, Versions]:
        """The valid and the flexible versions."""
        self.required(node, members, "validVersions", "message")
        versions = self.versions(members, "validVersions", NONE)
        flexible = self.versions(members, "flexibleVersions", NONE)
        if flexible and not flexible.open_ended:
            self.fail(members["flexibleVersions"], "flexibleVersions must be none or open-ended, like 3+")
        return versions, flexible

    def api_key(
        self, node: Node, members: dict[str, Node], kind: str, versions: Versions, flexible: Versions
    ) -> int | None:
        api_key = None
        if "apiKey" in members:
            api_key = self.integer(members["apiKey"], *INTEGERS["int16"], '"apiKey"')
        if kind.startswith("coordinator-") and api_key is None:
            self.fail(members["type"], f"a {kind} needs an apiKey: its record type")
        if versions and kind == "coordinator-key" and (versions != Versions(0, 0) or flexible):
            self.fail(node, "a coordinator-key has validVersions 0 and flexibleVersions none")
        if kind == "header" and api_key is not None:
            self.fail(members["apiKey"], "a header has no apiKey")
        return api_key

    def listener(self, node: Node, may_listen: bool) -> str:
        name = self.string(node, "a listener")
        if name not in LISTENERS:
            self.fail(node, f'there is no listener "{name}": {", ".join(LISTENERS)}')
        if not may_listen:
            self.fail(node, "only a request has listeners")
        return name

    def family(self, members: dict[str, Node]) -> str:
        family = self.text_of(members, "family", "kafka")
        if not _FAMILY.fullmatch(family):  # it becomes a part of generated source
            self.fail(members["family"], '"family" must be letters, digits and hyphens')
        return family

    def text_type(self, node: Node, members: dict[str, Node], encoding: str) -> str | None:
        if encoding == "text":
            type_node = self.required(node, members, "textType", "text-encoded message")
            text = self.string(type_node, '"textType"')
            if not _FIELD_NAME.fullmatch(text):
                self.fail(type_node, '"textType" must be letters and digits')
            return text
        if "textType" in members:
            self.fail(members["textType"], 'only a message with encoding "text" has a textType')
        return None

    # ---- structs

    def common_struct(self, node: Node) -> None:
        members = self.members(node, _STRUCT_KEYS, "common struct")
        name_node = self.required(node, members, "name", "common struct")
        self.required(node, members, "versions", "common struct")
        versions = self.versions(members, "versions", NONE)
        # A common struct may be used in any version that some field's range allows: its own range bounds its fields.
        self.define(name_node, self.string(name_node, '"name"'), node, members, versions, 1)

    def define(
        self, name_node: Node, name: str, node: Node, members: dict[str, Node], versions: Versions, depth: int
    ) -> Struct:
        if not _STRUCT_NAME.fullmatch(name):
            self.fail(name_node, f'"{name}" is not a struct name: an upper-case letter, then letters and digits')
        if name in self.struct_nodes:
            self.fail(name_node, f'the struct "{name}" is defined twice')
        self.struct_nodes[name] = node
        struct = Struct(name, self.fields(node, members, versions, depth), versions, self.text_of(members, "about"))
        self.structs[name] = struct
        return struct

    def fields(self, node: Node, members: dict[str, Node], versions: Versions, depth: int) -> tuple[Field, ...]:
        if depth > MAX_STRUCT_DEPTH:
            self.fail(node, f"structs may be nested at most {MAX_STRUCT_DEPTH} deep")
        fields: list[Field] = []
        names: set[str] = set()
        tags: dict[int, Node] = {}
        for item in self.items(members.get("fields")):
            field = self.field(item, versions, depth)
            if field.name.lower() in names:
                self.fail(item, f'the field "{field.name}" occurs twice in its struct')
            if attribute_name(field.name) == UNKNOWN_TAGS:
                self.fail(item, f'"{field.name}" is the name of the attribute that keeps unknown tagged fields')
            names.add(field.name.lower())
            if field.tag is not None:
                if field.tag in tags:
                    self.fail(item, f"the tag {field.tag} occurs twice in its struct")
                tags[field.tag] = item
            fields.append(field)
        self.check_beside(node, fields)
        for expected, tag in enumerate(sorted(tags)):
            if tag != expected:
                self.fail(tags[tag], f"tags must run from 0 without a gap: {expected} is missing")
        return tuple(fields)

    def structs_of(self, field: Field) -> list[Struct]:
        if field.type.is_struct:
            return [self.structs[field.type.base]]
        return [variant.struct for variant in field.variants]

    def check_structs(self, root: Struct, node: Node) -> None:
        """Refuse structs that are not defined, or whose values have no bound in the bytes that they take.

        So every reader is bounded by its input: it recurses to a depth that the smallest stack has room for, and a byte
        is at most one element of at most `MAX_VALUES` values.
        """
        for name, type_node in self.struct_types:
            if name not in self.structs:
                self.fail(type_node, f'there is no struct "{name}"')
        known: dict[str, tuple[int, int]] = {}  # the structs on the deepest path and the values, by name

        def visit(struct: Struct, above: tuple[str, ...]) -> tuple[int, int]:
            if struct.name in above:
                self.fail(self.struct_nodes.get(struct.name, node), f'the struct "{struct.name}" contains itself')
            if len(above) + known.get(struct.name, (1, 1))[0] > MAX_STRUCT_DEPTH + 1:
                self.fail(node, f"structs may be nested at most {MAX_STRUCT_DEPTH} deep")
            if struct.name not in known:
                depth = values = 1
                for field in struct.fields:
                    inner = [visit(each, (*above, struct.name)) for each in self.structs_of(field)]
                    depth = max([depth, *(1 + below for below, _ in inner)])
                    values += 1 if field.type.array or not inner else max(inside for _, inside in inner)
                if values > MAX_VALUES:
                    where = self.struct_nodes.get(struct.name, node)
                    self.fail(where, f"a struct has at most {MAX_VALUES} values, with those of the structs in it")
                known[struct.name] = depth, values
            return known[struct.name]

        for struct in (root, *self.structs.values()):
            visit(struct, ())
        everything = {root.name: root} | self.structs
        self.check_elements([everything[name] for name in known], root, node)

    def check_elements(self, order: list[Struct], root: Struct, node: Node) -> None:
        """Refuse an array whose elements take no byte: the bytes that are left would not bound their number.

        :param order: all structs, each after those in it
        """
        low, high = root.versions.low, root.versions.high

        def bits(versions: Versions) -> int:  # one for each of the message's versions
            first, last = max(low, versions.low), min(high, versions.high)
            return (2 << last - low) - (1 << first - low) if first <= last else 0

        empty: dict[str, int] = {}  # the versions in which a struct takes no byte; a flexible one has its tag section
        for struct in order:
            free = bits(root.versions) & ~bits(self.flexible)
            for field in struct.fields:
                there = bits(field.versions)
                if field.type.is_struct and not field.type.array:
                    there &= bits(field.nullable) | ~empty[field.type.base]
                free &= ~there
            empty[struct.name] = free
        reached = {root.name: bits(root.versions)}
        for struct in reversed(order):
            for field in struct.fields:
                there = reached.get(struct.name, 0) & bits(field.versions)
                if field.type.array and there & empty.get(field.type.base, 0):
                    where = self.struct_nodes.get(struct.name, node)
                    self.fail(where, f'the elements of "{field.name}" take no byte in a version that has them')
                for each in self.structs_of(field):
                    reached[each.name] = reached.get(each.name, 0) | there

    def check_classes(self, message: Message, node: Node) -> None:
        """Refuse two structs that would become one class, as Item and MessageItem of a Message would."""
        owners: dict[str, str] = {}
        for struct in (message.root, *message.structs.values()):
            other = owners.setdefault(class_name(message, struct), struct.name)
            if other != struct.name:
                where = self.struct_nodes.get(struct.name, node)
                self.fail(where, f'the structs "{other}" and "{struct.name}" would become one class')

    def check_optional(self, root: Struct, node: Node) -> None:
        for struct in (root, *self.structs.values()):
            for position, field in enumerate(struct.fields):
                if field.present_if_remaining and (struct is not root or position != len(root.fields) - 1):
                    self.fail(node, f'field "{field.name}": only the last field of a message can be presentIfRemaining')

    # ---- fields

    def field(self, node: Node, struct_versions: Versions, depth: int) -> Field:
        members = self.members(node, _FIELD_KEYS, "field")
        name_node = self.required(node, members, "name", "field")
        name = self.string(name_node, '"name"')
        if not _FIELD_NAME.fullmatch(name):
            self.fail(name_node, f'"{name}" is not a field name: a letter, then letters and digits')
        type_node = self.required(node, members, "type", "field")
        type_ = self.field_type(type_node)
        tagged = self.versions(members, "taggedVersions", NONE)
        if "versions" not in members and not tagged:
            self.fail(node, 'a field needs the key "versions" (or "taggedVersions")')
        versions = self.versions(members, "versions", tagged)
        nullable = self.nullable(members, type_, versions)
        tag = self.tag(node, members, type_, versions, nullable, tagged)
        field = Field(
            name=name,
            type=type_,
            versions=versions,
            nullable=nullable,
            tagged=tagged,
            tag=tag,
            default=self.default(members.get("default"), type_, versions, nullable),
            ignorable=self.flag(members, "ignorable"),
            map_key=self.map_key(members, tagged),
            entity_type=self.entity_type(members, type_),
            zero_copy=self.zero_copy(members, type_),
            flexible=self.field_flexible(members, type_),
            about=self.text_of(members, "about"),
            embeds=self.embeds(members, type_),
            minimum=self.maybe_integer(members, "minimum"),
            maximum=self.maybe_integer(members, "maximum"),
            max_length=self.maybe_integer(members, "maxLength"),
            present_if_remaining=self.flag(members, "presentIfRemaining"),
            variants=self.variants(node, members, type_, versions & struct_versions, depth),
            refused=tuple(self.refusal(item, type_, versions, nullable) for item in self.items(members.get("refused"))),
        )
        self.check_bounds(node, field)
        self.check_extensions(node, field)
        if "fields" in members:
            if not type_.is_struct:
                self.fail(members["fields"], f"a field of type {type_} cannot define fields")
            self.define(type_node, type_.base, node, {"fields": members["fields"]}, versions, depth + 1)
        return field

    def refusal(self, node: Node, type_: FieldType, versions: Versions, nullable: Versions) -> Refusal:
        members = self.members(node, _REFUSAL_KEYS, "refusal")
        given = [key for key in _CONDITIONS if key in members]
        if len(given) != 1:
            self.fail(node, f"a refusal has one of {', '.join(_CONDITIONS)}")
        (when,) = given
        each = self.flag(members, "each")
        about = FieldType(type_.base) if each else type_
        if (each and not type_.array) or not _CONDITIONS[when](about, NONE if each else nullable):
            self.fail(members[when], f'"{when}" cannot be refused of {"an element of " * each}a field of type {type_}')
        error_node = self.required(node, members, "error", "refusal")
        error = self.string(error_node, '"error"')
        if error not in ErrorCode.__members__:
            self.fail(error_node, f'there is no error code "{error}"')
        source = self.string(self.required(node, members, "source", "refusal"), '"source"')
        return Refusal(
            when=when,
            bound=self.bound(members, when),
            error=error,
            source=source,
            versions=self.versions(members, "versions", versions) & versions,
            beside=self.beside(members, "beside"),
            not_beside=self.beside(members, "notBeside"),
            each=each,
        )

    def beside(self, members: dict[str, Node], key: str) -> tuple[tuple[str, tuple[object, ...]], ...]:
        if key not in members:
            return ()
        node = members[key]
        if not isinstance(node.value, dict):
            self.fail(node, f'"{key}" is a JSON object of fields and lists of values')
        return tuple(
            (name, tuple(_plain_value(item) for item in self.items(each))) for name, each in node.value.items()
        )

    def bound(self, members: dict[str, Node], when: str) -> object:
        """What a condition compares a field with."""
        node = members[when]
        if when in ("below", "above"):
            return self.integer(node, *INTEGERS["int64"], f'"{when}"')
        if when in ("is", "notOneOf"):
            return tuple(self.integer(item, *INTEGERS["int64"], f'"{when}"') for item in self.items(node))
        if when == "unlike":
            text = self.string(node, f'"{when}"')
            try:
                re.compile(text)
            except re.error as error:
                self.fail(node, f'"{when}" is no regular expression: {error}')
            return text
        if not self.flag(members, when):
            self.fail(node, f'"{when}" can only be true')
        return None

    def check_beside(self, node: Node, fields: list[Field]) -> None:
        known = {field.name for field in fields}
        for field in fields:
            for name in (name for each in field.refused for name, _ in (*each.beside, *each.not_beside)):
                if name not in known:
                    self.fail(node, f'"beside" of "{field.name}": there is no field "{name}" in its struct')

    def check_extensions(self, node: Node, field: Field) -> None:
        if field.present_if_remaining and self.flexible:
            self.fail(node, "a message with a presentIfRemaining field is never flexible")
        may_be_missing = field.type.array and field.nullable.covers(field.versions) and field.default is None
        if field.present_if_remaining and not may_be_missing:
            self.fail(node, "a presentIfRemaining field is an array, nullable in all its versions, with default null")
        is_plain = not (field.type.array or field.tagged or field.nullable)
        if self.text and not (is_plain and field.type.base in ("string", "int32", "int64")):
            self.fail(node, "a text-encoded message has only plain string, int32 and int64 fields")

    def field_type(self, node: Node) -> FieldType:
        text = self.string(node, '"type"')
        array = text.startswith("[]")
        base = text[2:] if array else text
        if array and base.startswith("[]"):
            self.fail(node, "an array of arrays cannot be written")
        if array and base in ("bytes", "records", "union"):
            if base != "bytes":
                self.fail(node, f"an array of {base} cannot be written")
        elif base not in (*PRIMITIVES, "union") and not _STRUCT_NAME.fullmatch(base):
            self.fail(node, f'there is no type "{text}"')
        type_ = FieldType(base, array)
        if type_.is_struct:
            self.struct_types.append((base, node))
        return type_

    def nullable(self, members: dict[str, Node], type_: FieldType, versions: Versions) -> Versions:
        nullable = self.versions(members, "nullableVersions", NONE)
        if nullable and not (type_.array or type_.base in NULLABLE or type_.is_struct):
            self.fail(members["nullableVersions"], f"a field of type {type_} cannot be null")
        if nullable and not nullable & versions:
            self.fail(members["nullableVersions"], "nullableVersions must overlap the field's versions")
        return nullable & versions

    def tag(
        self,
        node: Node,
        members: dict[str, Node],
        type_: FieldType,
        versions: Versions,
        nullable: Versions,
        tagged: Versions,
    ) -> int | None:
        if not tagged:
            if "tag" in members:
                self.fail(members["tag"], "a tag needs taggedVersions")
            return None
        if "tag" not in members:
            self.fail(node, "taggedVersions need a tag")
        if not tagged.open_ended:
            self.fail(members["taggedVersions"], "taggedVersions must be open-ended, like 3+")
        if not versions.covers(tagged):
            self.fail(members["taggedVersions"], "taggedVersions must lie within the field's versions")
        if not self.flexible.covers(tagged):
            self.fail(members["taggedVersions"], "taggedVersions must lie within the message's flexibleVersions")
        if type_.base == "records":
            self.fail(node, "records cannot be a tagged field")
        if type_.base == "union":
            self.fail(node, "a union cannot be a tagged field")
        overlap = nullable & tagged
        if overlap and overlap != tagged:
            self.fail(node, "a tagged field is nullable in all of its taggedVersions or in none")
        return self.integer(members["tag"], 0, 2**31 - 1, '"tag"')

    def map_key(self, members: dict[str, Node], tagged: Versions) -> bool:
        is_key = self.flag(members, "mapKey")
        if is_key and tagged:
            self.fail(members["mapKey"], "a tagged field cannot be a mapKey")
        return is_key

    def entity_type(self, members: dict[str, Node], type_: FieldType) -> str | None:
        if "entityType" not in members:
            return None
        name = self.text_of(members, "entityType")
        if name not in ENTITY_TYPES:
            self.fail(members["entityType"], f'there is no entity type "{name}"')
        base = ENTITY_TYPES[name]
        if base is not None and type_.base != base:
            self.fail(members["entityType"], f"the entity type {name} is a {base}, the field a {type_}")
        return name

    def zero_copy(self, members: dict[str, Node], type_: FieldType) -> bool:
        wanted = self.flag(members, "zeroCopy")
        if wanted and (type_.base != "bytes" or type_.array):
            self.fail(members["zeroCopy"], "only a bytes field can be zeroCopy")
        return wanted

    def field_flexible(self, members: dict[str, Node], type_: FieldType) -> Versions | None:
        if "flexibleVersions" not in members or members["flexibleVersions"].value == "":
            return None
        if type_.array or type_.base not in ("string", "bytes"):
            self.fail(members["flexibleVersions"], "only a string or bytes field can have flexibleVersions")
        flexible = self.versions(members, "flexibleVersions", NONE)
        if not self.flexible.covers(flexible):
            self.fail(members["flexibleVersions"], "a field's flexibleVersions must lie within its message's")
        return flexible

    def embeds(self, members: dict[str, Node], type_: FieldType) -> str | None:
        if "embeds" not in members:
            return None
        if type_.array or type_.base != "bytes":
            self.fail(members["embeds"], "only a bytes field embeds a message")
        return self.text_of(members, "embeds")

    def variants(
        self, node: Node, members: dict[str, Node], type_: FieldType, versions: Versions, depth: int
    ) -> tuple[Variant, ...]:
        if type_.base != "union":
            if "variants" in members:
                self.fail(members["variants"], "only a union has variants")
            return ()
        variants: list[Variant] = []
        for item in self.items(self.required(node, members, "variants", "union")):
            parts = self.members(item, _VARIANT_KEYS, "variant")
            name_node = self.required(item, parts, "name", "variant")
            tag = self.integer(self.required(item, parts, "tag", "variant"), *INTEGERS["int8"], '"tag"')
            if any(tag == variant.tag for variant in variants):
                self.fail(parts["tag"], f"the tag {tag} occurs twice in its union")
            struct = self.define(name_node, self.string(name_node, '"name"'), item, parts, versions, depth + 1)
            if any(field.refused for field in struct.fields):
                self.fail(item, "the fields of a variant have no refusals")
            variants.append(Variant(tag, struct))
        if not variants:
            self.fail(members["variants"], "a union needs at least one variant")
        return tuple(variants)

    def check_bounds(self, node: Node, field: Field) -> None:
        if field.minimum is not None or field.maximum is not None:
            if field.type.array or field.type.base not in INTEGERS:
                self.fail(node, "only an integer field has a minimum and a maximum")
            low, high = INTEGERS[field.type.base]
            lowest = low if field.minimum is None else field.minimum
            highest = high if field.maximum is None else field.maximum
            if not low <= lowest <= highest <= high:
                self.fail(node, f"minimum and maximum must ascend within {field.type}")
            if not isinstance(field.default, int) or not lowest <= field.default <= highest:
                self.fail(node, "the default must lie between minimum and maximum")
        if field.max_length is not None and (field.type.array or field.type.base != "string" or field.max_length < 0):
            self.fail(node, "only a string field has a maxLength, of 0 or more bytes")

    # ---- defaults

    def default(self, node: Node | None, type_: FieldType, versions: Versions, nullable: Versions) -> object:
        # A JSON null means that there is no default, as in Kafka's generator; the string "null" is the null default.
        if node is None or node.value is None:
            return _no_default(type_)
        text = self.default_text(node)
        may_be_null = type_.array or type_.is_struct or type_.base in NULLABLE
        if text == "null" and may_be_null:
            if not nullable.covers(versions):
                self.fail(node, "a field with default null must be nullable in all its versions")
            return None
        if type_.base == "string" and not type_.array:
            return text
        if not text:
            return _no_default(type_)
        if type_.array or type_.is_struct or type_.base in ("bytes", "records", "union"):
            self.fail(node, f'the default of a field of type {type_} is "null" or empty')
        try:
            return _parse_scalar(type_.base, text)
        except ValueError:
            self.fail(node, f'"{text}" is not a default for a field of type {type_}')

    def default_text(self, node: Node) -> str:
        value = node.value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str | int | float):
            return str(value)
        self.fail(node, "a default must be a string, a number, true or false")


def _plain_value(node: Node) -> object:
    return [_plain_value(item) for item in node.value] if isinstance(node.value, list) else node.value


def _no_default(type_: FieldType) -> object:
    """The default of a field whose schema has none."""
    if type_.array:
        return ()
    if type_.is_struct or type_.base == "union":
        return ...
    kinds: Mapping[str, object] = {"bytes": b"", "records": None, "string": ""}
    return kinds[type_.base] if type_.base in kinds else _parse_scalar(type_.base, "")


def _parse_int(text: str) -> int:
    sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("+", text)
    value = int(digits, 16) if digits[:2].lower() == "0x" else int(digits)
    return -value if sign == "-" else value


def _parse_scalar(base: str, text: str) -> object:
    if base == "bool":
        if text.lower() not in ("", "true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if base == "uuid":
        if not text:
            return uuid.UUID(int=0)
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return uuid.UUID(bytes=raw)
    if base == "float64":
        number = float(text) if text else 0.0
        if math.isnan(number):  # a default must equal itself, or writers could never leave the field out
            raise ValueError(text)
        return number
    if not text:
        return 0
    if not _INT.fullmatch(text):
        raise ValueError(text)
    value = _parse_int(text)
    low, high = INTEGERS[base]
    if not low <= value <= high:
        raise ValueError(text)
    return value
