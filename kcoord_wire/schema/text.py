"""Schema text to nodes: JSON with comments, each value with the line it starts on.

The dialect is the one Kafka's generator reads (Jackson with ALLOW_COMMENTS and FAIL_ON_TRAILING_TOKENS): standard JSON
plus ``//`` and ``/* */`` comments. Laws:

* A value and its place travel together, so that an error in the value can be reported with its line and path.
* Anything that is not this dialect is a `SchemaError` with file and line. A key may occur twice in one object if both
  values are the same (two of Kafka's own files do that); two different values are an error.
* Closing braces too many at the end are ignored: Kafka's generator read one value and no further until 2.8, which has
  such a file.
* The comment lines directly above the first ``{`` are kept: they are the message's description. A licence that a blank
  line separates from it, as in Kafka's files, is not.

`decode_like_java` is here as well: Java's decoder of UTF-8, which replaces what is malformed and never fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NoReturn

from kcoord_wire.errors import SchemaError

REPLACEMENT: Final = "\ufffd".encode()
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode_like_java(raw: bytes | memoryview) -> str:
    """The text of `raw`, with U+FFFD for each malformed sequence, as ``new String(raw, UTF_8)`` decodes it.

    CPython's own replacement counts the same malformed sequences with one exception: an encoded surrogate (ED A0 80) is
    three of them to CPython and one to Java. Both drop what cannot continue a sequence byte by byte (F4 90 is two).
    Source: decodeUTF8_UTF16 in OpenJDK's java.lang.String.
    """
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        # 0xED never continues a sequence, so that replacing surrogates first leaves the other sequences as they are.
        return _SURROGATE.sub(REPLACEMENT, bytes(raw)).decode(errors="replace")


MAX_DEPTH: Final = 64

# Possessive, because a group that may go back keeps a hundred bytes for each of its turns.
_SKIP: Final = re.compile(r"(?:[ \t\r\n\ufeff]++|//[^\n]*+|/\*.*?\*/)*+", re.S)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
_SCALAR: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


@dataclass(slots=True)
class Node:
    """A JSON value and the place of its first character in the text."""

    value: Value
    at: int = field(compare=False)


Value = dict[str, Node] | list[Node] | str | int | float | bool | None


def line_of(text: str, at: int) -> int:
    """The line, from 1, of the character at `at`."""
    return text.count("\n", 0, at) + 1


def path_of(root: Node, node: Node) -> str:
    """The JSON path of `node` below `root` (``$.fields[2].type``), searched for: no node keeps its own.

    Paths of all nodes together grow with the square of the text, where a long key has many values below it.
    """
    below: list[tuple[Node, tuple[str | int, ...]]] = [(root, ())]
    while below:
        found, keys = below.pop()
        if found is node:
            return _path(keys)
        if isinstance(found.value, dict):
            below += ((member, (*keys, key)) for key, member in found.value.items())
        elif isinstance(found.value, list):
            below += ((item, (*keys, index)) for index, item in enumerate(found.value))
    raise ValueError("the node is not below that root")


def _path(keys: Iterable[str | int]) -> str:
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def _is_comment(line: str) -> bool:
    return line.startswith("//")


def parse_text(text: str, file: str = "<schema>") -> tuple[Node, str]:
    """The root value of a schema file and the comment lines directly above it.

    :param text: the file's whole text
    :param file: the name to use in errors
    :raises SchemaError: the text is not JSON with comments, or other text follows its value
    """
    parser = _Parser(text, file)
    start = parser.skip(0)
    node, end = parser.value(start)
    end = parser.skip(end)
    while text.startswith("}", end):
        end = parser.skip(end + 1)
    if end != len(text):
        parser.fail("nothing may follow the value", end)
    above = (line.strip() for line in reversed(text[:start].splitlines()))
    lines = [line[3:] if line[2:3].isspace() else line[2:] for line in takewhile(_is_comment, above)]
    return node, "\n".join(reversed(lines)).strip()


class _Parser:
    """Each method returns what it has read and the place after it; `keys` lead to the value that is being read."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.keys: list[str | int] = []

    def fail(self, rule: str, pos: int) -> NoReturn:
        raise SchemaError(rule, file=self.file, where=_path(self.keys), line=line_of(self.text, pos))

    def skip(self, pos: int) -> int:
        match = _SKIP.match(self.text, pos)
        assert match is not None
        return match.end()

    def value(self, pos: int) -> tuple[Node, int]:
        if len(self.keys) > MAX_DEPTH:
            self.fail(f"values may be nested at most {MAX_DEPTH} deep", pos)
        first = self.text[pos : pos + 1]
        value: Value
        if first == '"':
            value, end = self.string(pos)
        elif first == "{":
            value, end = self.object(pos + 1)
        elif first == "[":
            value, end = self.array(pos + 1)
        else:
            value, end = self.scalar(pos)
        return Node(value, pos), end

    def scalar(self, pos: int) -> tuple[Value, int]:
        match = _SCALAR.match(self.text, pos)
        if match is None:
            self.fail("a JSON value is expected here", pos)
        try:
            return json.loads(match.group()), match.end()
        except ValueError:
            self.fail("the number has too many digits", pos)

    def string(self, pos: int) -> tuple[str, int]:
        match = _STRING.match(self.text, pos)
        if match is None:
            self.fail("a string is expected here, closed on its own line", pos)
        end = match.end()
        if self.text.find("\\", pos, end) < 0:  # nearly always
            return self.text[pos + 1 : end - 1], end
        try:
            return json.loads(match.group()), end
        except ValueError:
            self.fail("the string holds an escape that JSON does not have", pos)

    def object(self, pos: int) -> tuple[dict[str, Node], int]:
        members: dict[str, Node] = {}
        pos = self.skip(pos)
        if self.text.startswith("}", pos):
            return members, pos + 1
        while True:
            key_at = pos
            key, pos = self.string(pos)
            pos = self.skip(self.expect(":", self.skip(pos)))
            self.keys.append(key)
            node, pos = self.value(pos)
            self.keys.pop()
            if members.setdefault(key, node).value != node.value:
                self.fail(f'the key "{key}" occurs twice, with two values', key_at)
            pos = self.skip(pos)
            if self.text.startswith("}", pos):
                return members, pos + 1
            pos = self.skip(self.expect(",", pos))

    def array(self, pos: int) -> tuple[list[Node], int]:
        items: list[Node] = []
        pos = self.skip(pos)
        if self.text.startswith("]", pos):
            return items, pos + 1
        while True:
            self.keys.append(len(items))
            node, pos = self.value(pos)
            self.keys.pop()
            items.append(node)
            pos = self.skip(pos)
            if self.text.startswith("]", pos):
                return items, pos + 1
            pos = self.skip(self.expect(",", pos))

    def expect(self, char: str, pos: int) -> int:
        if not self.text.startswith(char, pos):
            self.fail(f'"{char}" is expected here', pos)
        return pos + 1
