"""Sphinx: what it builds from the sources that `python -m docs.website` writes. Nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import kcoord_wire as kw

project = "kcoord_wire"
version = release = kw.__version__
html_show_copyright = False
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
suppress_warnings = ["myst.header"]  # a page may begin a level down

html_theme = "furo"
html_title = f"kcoord_wire {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # read by fetch, which file:// refuses

myst_heading_anchors = 4
myst_enable_extensions: list[str] = []
highlight_language = "none"

default_role = "py:obj"  # as single backticks are meant: a link where there is one, code where there is none
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
toc_object_entries = False  # the tree at the side of each page would be made of all of them


def setup(app: Any) -> None:
    """Read the docstrings as they are written here."""
    app.connect("autodoc-process-docstring", lambda *event: event[-1].__setitem__(slice(None), [*_literal(event[-1])]))


def _literal(lines: list[str]) -> Iterator[str]:
    """Make programs and tables, which are indented or have bars, blocks of their own for reStructuredText."""
    above = ""
    is_table = False
    for at, line in enumerate(lines):
        starts = at == 0 or not lines[at - 1].strip()
        if starts and line.startswith("    ") and not re.match(r"\s|[*:-] |\.\. |:|.*::$", above):
            yield from ("::", "")
        if line.startswith("|") != is_table:
            is_table = not is_table
            yield from ("::", "") if is_table else ()
        yield f"    {line}" if is_table else line
        above = line or above
