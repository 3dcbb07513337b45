"""UTF-8 as Kafka's readers decode it: Java's decoder replaces what is malformed and never fails."""

from __future__ import annotations

import re
from typing import Final

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
