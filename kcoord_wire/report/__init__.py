"""The report on groups: one HTML file, JSON, or text for a terminal.

Only `write_html` needs altair and vl-convert, only `print_summary` needs rich.

What is said of a cause, and its colour, stand in `forensics.causes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcoord_wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from kcoord_wire.report.json_form import json_schema, to_json, write_json
    from kcoord_wire.report.page import write_html
    from kcoord_wire.report.terminal import print_summary

__all__ = ["json_schema", "print_summary", "to_json", "write_html", "write_json"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"json_form": ("json_schema", "to_json", "write_json"), "page": ("write_html",), "terminal": ("print_summary",)},
)
