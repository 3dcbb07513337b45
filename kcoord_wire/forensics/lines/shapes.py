"""The shape of a line: a template with fields, compiled to a search that takes linear time.

A template is the text of the line with fields in angle brackets, ``Stabilized group <group> generation <generation>``;
``[[...]]`` is optional text and ``{a|b}`` one of several. `FIELDS` has the fields and the column of `LogLine` that each
fills. A field ends where the text behind it begins, or with the line.

Laws:

* A line that holds no literal of a template costs one substring search for it.
* No line, whatever it holds, costs more than `_TRIES` matches of a template, whose fields are bounded in length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_NAME: Final = r".{1,300}?"
_LIST: Final = r".{0,4000}?"
_NUMBER: Final = r"-?\d{1,10}"
FIELDS: Final = {
    "group": ("group_id", _NAME),
    "member": ("member_id", _NAME),
    "instance": ("instance_id", _NAME),
    "client": ("client_id", _NAME),
    "host": ("client_host", _NAME),
    "generation": ("generation_id", _NUMBER),
    "state": ("state", r"\w{1,40}"),
    "reason": ("reason", _LIST),
    "members": ("members", _NUMBER),
    "assignor": ("assignor", r"[^,'\s]{0,100}"),
    "other": ("other_id", _NAME),
    "timeout": ("timeout_ms", _NUMBER),
    "took": ("took_ms", _NUMBER),
    "any": (None, _NAME),
    "list": (None, _LIST),
}
"""Fields of a template: the column that each fills (None: read and dropped), and its regular expression."""

_TOKEN: Final = re.compile(r"<(\w+)>|(\[\[)|(\]\])|(\{)|(\})|(\|)")
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A line that a program writes.

    :ivar kind: what it says, a name in `kcoord_wire.forensics.lines.meanings`
    :ivar template: its text
    :ivar programs: that write it; the first counts where the line does not show which
    """

    kind: str
    template: str
    programs: Sequence[str]
    literal: str = field(init=False)
    _first: str = field(init=False)
    _pattern: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        source, literals, first = _compiled(self.template)
        object.__setattr__(self, "literal", max(literals, key=len))
        object.__setattr__(self, "_first", first)
        object.__setattr__(self, "_pattern", re.compile(source, re.DOTALL))

    def match(self, text: str) -> re.Match[str] | None:
        """Return where the template matches in a line, or None."""
        if self.literal not in text:
            return None
        at = -1
        for _ in range(_TRIES):
            at = text.find(self._first, at + 1)
            if at < 0:
                return None
            if found := self._pattern.match(text, at):
                return found
        return None


def _compiled(template: str) -> tuple[str, list[str], str]:
    """Return the regular expression of a template, the literals that every match holds, and its first literal."""
    source: list[str] = []
    literals: list[str] = []
    depth = start = 0
    for token in _TOKEN.finditer(template):
        text = template[start : token.start()]
        source.append(re.escape(text))
        if depth == 0 and text:
            literals.append(text)
        start = token.end()
        name, opened, closed, choice, chosen, _ = token.groups()
        depth += bool(opened or choice) - bool(closed or chosen)
        if name:
            source.append(f"(?P<{name}>{FIELDS[name][1]})" if FIELDS[name][0] else f"(?:{FIELDS[name][1]})")
        else:
            source.append("(?:" if opened or choice else ")?" if closed else ")" if chosen else "|")
    rest = template[start:]
    source.append(re.escape(rest) if rest else r"\.?\s*$")
    literals += [rest] if rest else []
    if not template.startswith(literals[0]):
        raise ValueError(f"a template begins with text, not with a field or a choice: {template}")
    return "".join(source), literals, literals[0]
