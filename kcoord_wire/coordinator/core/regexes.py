"""Regular expressions of clients: which pattern is valid, and which names match it.

Laws:

* A pattern costs time in proportion to its length and to the names that it is matched against: it is read by RE2, the
  library whose language KIP-848 and KIP-1152 ask for. Backreferences and lookaround do not exist in it.
* Length, memory and number of patterns are bounded before they are used, and so is what is matched at a time.
* A name is matched against a pattern once, however often topics change.

Source: KIP-848 "Regular Expressions", KIP-1152; Kafka's `TopicRegexResolver.java` (it takes RE2J, the same language).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from kcoord_wire.extras import require

MAX_PATTERN: Final = 4_096
"""The characters that a pattern may have; Kafka has no bound but that of a request."""

MAX_PATTERNS: Final = 100
"""The different patterns that the members of a group may subscribe to; Kafka has no bound."""

WORK_PER_STEP: Final = 1 << 20
"""What is matched with one heartbeat: characters of a pattern times characters of a name. The slowest pattern found
takes 7 ms for that; of patterns and names of 20 characters it is some 2,600 names."""

_MAX_MEMORY: Final = 1 << 20  # of one compiled pattern
_REMEMBERED: Final = 256


class InvalidRegexError(ValueError):
    """A pattern that RE2 does not accept, or that is too large; its text says why."""


CompileRegex = Callable[[str], Any]
"""Compiles a pattern, which has a method ``fullmatch``; raises `InvalidRegexError`."""


@lru_cache(_REMEMBERED)
def compile_regex(pattern: str) -> Any:
    """Compile a pattern by RE2.

    :raises InvalidRegexError: it is not a pattern, or too large
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    if len(pattern) > MAX_PATTERN:
        raise InvalidRegexError(f"it has {len(pattern)} characters, and may have {MAX_PATTERN}")
    re2 = require("re2", "serve", "a regular expression of a client")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        return re2.compile(pattern, options=options)
    except re2.error as cause:
        (detail,) = cause.args
        text = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        raise InvalidRegexError(text) from None


class Resolution:
    """The patterns of a group on the way to the topics that match them, a bounded part of the work at a time.

    :param patterns: to match
    :param names: of all topics
    :param version: how often topics had changed
    :param known: what patterns matched of `tested`; the others begin anew
    :param tested: the names of the last resolution
    :ivar names: as given
    :ivar version: as given
    :ivar found: pattern to the names that match it
    """

    __slots__ = ("_at", "_left", "_new", "found", "names", "version")

    def __init__(
        self,
        patterns: Iterable[str],
        names: frozenset[str],
        version: int,
        known: Mapping[str, frozenset[str]],
        tested: frozenset[str],
    ) -> None:
        self.names = names
        self.version = version
        self.found = {pattern: set(known.get(pattern, frozenset()) & names & tested) for pattern in patterns}
        self._new = sorted(names - tested)
        self._left = [(pattern, self._new if pattern in known else sorted(names)) for pattern in self.found]
        self._at = 0

    def go_on(self, compile_pattern: CompileRegex, work: int = WORK_PER_STEP) -> bool:
        """Match some names more; return whether all have been matched.

        :param work: characters of a pattern times characters of a name; one name is matched in any case
        """
        while self._left:
            pattern, names = self._left[-1]
            try:
                compiled = compile_pattern(pattern)
            except InvalidRegexError:  # written by a coordinator that reads another language
                self._at = len(names)
            while self._at < len(names):
                if work <= 0:
                    return False
                name = names[self._at]
                work -= len(pattern) * len(name)
                self._at += 1
                if compiled.fullmatch(name):
                    self.found[pattern].add(name)
            self._left.pop()
            self._at = 0
        return True
