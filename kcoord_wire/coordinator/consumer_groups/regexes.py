"""Subscriptions by regular expression: which pattern is valid, and which topics match it.

Laws:

* A pattern costs time in proportion to its length and to the names that it is matched against: it is read by RE2, the
  library whose language KIP-848 asks for. Backreferences and lookaround do not exist in it.
* Length, memory and number of patterns are bounded before they are used.

Source: KIP-848 "Regular Expressions"; Kafka's `TopicRegexResolver.java` (it takes RE2J, the same language).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Protocol

from kcoord_wire.extras import require

__all__ = ["MAX_PATTERN", "CompileRegex", "InvalidRegexError", "Pattern", "compile_regex", "matching"]

MAX_PATTERN: Final = 4_096
"""The characters that a pattern may have; Kafka has no bound but that of a request."""

_MAX_MEMORY: Final = 1 << 20  # of one compiled pattern
_REMEMBERED: Final = 256


class InvalidRegexError(ValueError):
    """A pattern that RE2 does not accept, or that is too large; its text says why."""


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str) -> Any:
        """Return something true if the whole text matches."""


CompileRegex = Callable[[str], Pattern]
"""Compiles a pattern; raises `InvalidRegexError`."""


@lru_cache(_REMEMBERED)
def compile_regex(pattern: str) -> Pattern:
    """Compile a pattern by RE2.

    :raises InvalidRegexError: it is not a pattern, or too large
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    if len(pattern) > MAX_PATTERN:
        raise InvalidRegexError(f"it has {len(pattern)} characters, and may have {MAX_PATTERN}")
    re2 = require("re2", "serve", "a subscription by regular expression")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        compiled: Pattern = re2.compile(pattern, options=options)
    except re2.error as cause:
        detail = cause.args[0] if cause.args else cause
        text = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        raise InvalidRegexError(text) from None
    return compiled


def matching(pattern: Pattern, names: Iterable[str]) -> frozenset[str]:
    """Return the names that match as a whole."""
    return frozenset(name for name in names if pattern.fullmatch(name))
