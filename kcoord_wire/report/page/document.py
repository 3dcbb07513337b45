"""The report as one HTML file that opens offline and makes no network request.

Laws:

* The file contains its style, scripts, chart library and data. A Content Security Policy allows each script and style
  by its hash and forbids everything else, such as the network and inline handlers; Vega's expressions are interpreted.
* Data is JSON in a block that is not a script, with ``<``, ``>``, ``&`` and the line separators escaped; the scripts
  insert it into the document as text, never as markup.
* Without scripts, or where they do not start, the groups are sentences and tables (`plain`).
* The same input has the same bytes: no time of writing, no random name.
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
from typing import Any, Final

from kcoord_wire.extras import require
from kcoord_wire.forensics.model import GroupHistory, Loss
from kcoord_wire.report.formatting import shown
from kcoord_wire.report.page.charts import chart_specs
from kcoord_wire.report.page.data import page_data
from kcoord_wire.report.page.keys import PageKeys
from kcoord_wire.report.page.plain import losses as losses_section
from kcoord_wire.report.page.plain import overview, plain

FOLDER: Final = Path(__file__).parent
SCRIPTS: Final = ("document.js", "charts.js", "table.js", "page.js")  # in this order, as one script
_PLAIN: Final = ("title", "source", "losses", "lost")  # keys that no script reads
_SLOT: Final = re.compile(r"\{\{(\w+)\}\}")
_LIBRARY_NOTICE: Final = (
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
    :param source: a description of the sources, shown below the title
    :raises MissingLibraryError: altair or vl-convert is not installed
    """
    text = _page(page_data(histories, losses, title=title, source=source), title)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _page(data: PageKeys, title: str) -> str:
    first = (FOLDER / "first.js").read_text("utf-8")
    script = "\n".join(['"use strict";', *((FOLDER / name).read_text("utf-8") for name in SCRIPTS)])
    style = (FOLDER / "page.css").read_text("utf-8")
    library = _library()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(first)} {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    slots = {
        "policy": policy,
        "title": html.escape(shown(title)),
        "source": html.escape("" if data["source"] == data["title"] else data["source"]),
        "style": style,
        "first": first,
        "overview": overview(data),
        "plain": plain(data),
        "losses": losses_section(data),
        "library": library,
        "script": script,
        "data": _json({key: value for key, value in data.items() if key not in _PLAIN}),
        "charts": _json(chart_specs()),
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], (FOLDER / "page.html").read_text("utf-8"))


def _json(value: Any) -> str:
    """JSON that an HTML parser reads as text only."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029\x7f]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _library() -> str:
    bundle: str = require("vl_convert", "analyze", "the HTML report").javascript_bundle("window.vegaEmbed = vegaEmbed;")
    if re.search("</script|<!--|[\r\0]", bundle, re.IGNORECASE):
        raise AssertionError("vl-convert's bundle cannot be embedded in HTML unchanged")
    return f"{_LIBRARY_NOTICE}(() => {{{bundle}}})();"  # keeps its names out of the global scope
