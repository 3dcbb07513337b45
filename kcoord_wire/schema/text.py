"""Schema text to nodes: JSON with comments, each value with the line it starts on.

The dialect is the one Kafka's generator reads (Jackson with ALLOW_COMMENTS and FAIL_ON_TRAILING_TOKENS): standard JSON
plus ``//`` and ``/* */`` comments. Laws:

* A value and its line travel together, so that an error in the value can be reported with its line.
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
from dataclasses import dataclass
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

_SKIP: Final = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.S)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_COMMENT_LINE: Final = re.compile(r"^\s*//\s?(.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value, the line it starts on (from 1), and its JSON path (``$.fields[2].type``)."""

    value: Value
    line: int
    path: str


Value = dict[str, Node] | list[Node] | str | int | float | bool | None


def parse_text(text: str, file: str = "<schema>") -> tuple[Node, str]:
    """The root value of a schema file and the comment lines directly above it.

    :param text: the file's whole text
    :param file: the name to use in errors
    :raises SchemaError: the text is not JSON with comments, or other text follows its value
    """
    parser = _Parser(text, file)
    start = parser.skip(0)
    node, end = parser.value(start, "$", 0)
    end = parser.skip(end)
    while text.startswith("}", end):
        end = parser.skip(end + 1)
    if end != len(text):
        parser.fail("nothing may follow the value", end, "$")
    above = [_COMMENT_LINE.match(line) for line in text[:start].splitlines()]
    lines = [match.group(1) for match in takewhile(bool, reversed(above)) if match]
    return node, "\n".join(reversed(lines)).strip()


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._line_at = 0
        self._line = 1

    def line(self, pos: int) -> int:
        # Positions are requested in ascending order, except on failure: counting continues from the last one.
        if pos < self._line_at:
            return self.text.count("\n", 0, pos) + 1
        self._line += self.text.count("\n", self._line_at, pos)
        self._line_at = pos
        return self._line

    def fail(self, rule: str, pos: int, path: str) -> NoReturn:
        raise SchemaError(rule, file=self.file, where=path, line=self.line(pos))

    def skip(self, pos: int) -> int:
        match = _SKIP.match(self.text, pos)
        assert match is not None
        return match.end()

    def value(self, pos: int, path: str, depth: int) -> tuple[Node, int]:
        if depth > MAX_DEPTH:
            self.fail(f"values may be nested at most {MAX_DEPTH} deep", pos, path)
        line = self.line(pos)
        first = self.text[pos : pos + 1]
        if first == "{":
            members, end = self.object(pos + 1, path, depth)
            return Node(members, line, path), end
        if first == "[":
            items, end = self.array(pos + 1, path, depth)
            return Node(items, line, path), end
        if first == '"':
            text, end = self.string(pos, path)
            return Node(text, line, path), end
        match = _SCALAR.match(self.text, pos)
        if match is None:
            self.fail("a JSON value is expected here", pos, path)
        try:
            scalar: Value = json.loads(match.group())
        except ValueError:
            self.fail("the number has too many digits", pos, path)
        return Node(scalar, line, path), match.end()

    def string(self, pos: int, path: str) -> tuple[str, int]:
        match = _STRING.match(self.text, pos)
        if match is None:
            self.fail("a string is expected here, closed on its own line", pos, path)
        try:
            text: str = json.loads(match.group())
        except ValueError:
            self.fail("the string holds an escape that JSON does not have", pos, path)
        return text, match.end()

    def object(self, pos: int, path: str, depth: int) -> tuple[dict[str, Node], int]:
        members: dict[str, Node] = {}
        pos = self.skip(pos)
        if self.text.startswith("}", pos):
            return members, pos + 1
        while True:
            key_at = pos
            key, pos = self.string(pos, path)
            pos = self.expect(":", self.skip(pos), path)
            node, pos = self.value(self.skip(pos), f"{path}.{key}", depth + 1)
            if members.setdefault(key, node).value != node.value:
                self.fail(f'the key "{key}" occurs twice, with two values', key_at, path)
            pos = self.skip(pos)
            if self.text.startswith("}", pos):
                return members, pos + 1
            pos = self.skip(self.expect(",", pos, path))

    def array(self, pos: int, path: str, depth: int) -> tuple[list[Node], int]:
        items: list[Node] = []
        pos = self.skip(pos)
        if self.text.startswith("]", pos):
            return items, pos + 1
        while True:
            node, pos = self.value(pos, f"{path}[{len(items)}]", depth + 1)
            items.append(node)
            pos = self.skip(pos)
            if self.text.startswith("]", pos):
                return items, pos + 1
            pos = self.skip(self.expect(",", pos, path))

    def expect(self, char: str, pos: int, path: str) -> int:
        if not self.text.startswith(char, pos):
            self.fail(f'"{char}" is expected here', pos, path)
        return pos + 1
