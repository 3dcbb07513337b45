"""The report as one HTML file that opens offline and asks nobody for anything.

Laws:

* The file carries its style, scripts, charts library and data. A Content Security Policy names every script and style
  by its hash and forbids all else, the network and inline handlers among it; Vega's expressions are interpreted.
* Data is JSON in a block that is no script, with ``<``, ``>``, ``&`` and the line separators escaped; the page's
  scripts put it into the document as text, never as markup.
* The same input gives the same bytes: no time of writing, no random name.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kcoord_wire.extras import require
from kcoord_wire.forensics.model import GroupHistory, Loss
from kcoord_wire.report.charts import chart_specs
from kcoord_wire.report.formatting import shown
from kcoord_wire.report.page_data import page_data

__all__ = ["SCRIPTS", "write_html"]

FOLDER = Path(__file__).parent
SCRIPTS = ("document.js", "charts.js", "table.js", "page.js")  # in this order, as one script
SLOT = re.compile(r"\{\{(\w+)\}\}")
LIBRARY_NOTICE = (
    "/* Vega, Vega-Lite and Vega-Embed: Copyright (c) 2015-2025 University of Washington Interactive Data Lab and"
    " contributors, BSD-3-Clause licence; with libraries by Mike Bostock (d3, ISC licence) and others. */\n"
)


def write_html(
    histories: Sequence[GroupHistory],
    losses: Sequence[Loss],
    path: str | os.PathLike[str],
    *,
    title: str = "Consumer group report",
    source: str = "",
) -> None:
    """Write the report.

    :param title: of the page
    :param source: what was analysed, in words; stands under the title
    :raises MissingLibraryError: altair or vl-convert is not installed
    """
    text = _page(page_data(histories, losses, title=title, source=source), title)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _page(data: dict[str, Any], title: str) -> str:
    script = "\n".join(['"use strict";', *((FOLDER / name).read_text("utf-8") for name in SCRIPTS)])
    style = (FOLDER / "page.css").read_text("utf-8")
    library = _library()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    slots = {
        "policy": policy,
        "title": html.escape(shown(title)),
        "style": style,
        "library": library,
        "script": script,
        "data": _json(data),
        "charts": _json(chart_specs()),
    }
    return SLOT.sub(lambda slot: slots[slot[1]], (FOLDER / "page.html").read_text("utf-8"))


def _json(value: Any) -> str:
    """JSON that an HTML parser reads as nothing but text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029\x7f]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    bundle: str = require("vl_convert", "analyze", "the HTML report").javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if re.search("</script|<!--|[\r\0]", bundle, re.IGNORECASE):
        raise AssertionError("vl-convert's bundle cannot stand in an HTML file as it is")
    return f"{LIBRARY_NOTICE}(() => {{{bundle}}})();"  # its names stay its own
