"""The live page of the control port: one HTML file with its style and script, which asks the port for the rest.

Laws:

* The page has no data and no token: a browser keeps the token behind ``#``, and the script sends it with each request.
* The policy allows this style and script by their hashes, requests to the port itself, and nothing else.
* Strings of clients become text, never markup (report/page/document.js).

The style and the helpers are those of the report; its charts need a library that the extra ``serve`` does not have.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_REPORT: Final = _HERE.parent / "report" / "page"


@cache
def _style() -> str:
    return "\n".join(path.read_text("utf-8") for path in (_REPORT / "page.css", _HERE / "live.css"))


@cache
def _script() -> str:
    parts = [path.read_text("utf-8") for path in (_REPORT / "document.js", _HERE / "live.js")]
    return "\n".join(['"use strict";', *parts])


@cache
def live_page() -> bytes:
    """Return the page."""
    page = (_HERE / "live.html").read_text("utf-8")
    return page.replace("{{style}}", _style()).replace("{{script}}", _script()).encode()


@cache
def live_policy() -> str:
    """Return its Content-Security-Policy."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(_script())}",
            f"style-src {_hash(_style())}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
