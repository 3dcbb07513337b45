"""The report on groups: one HTML file, JSON, or text for a terminal.

Only `write_html` needs altair and vl-convert, only `print_summary` needs rich.
"""

from kcoord_wire.report.json_form import to_json, write_json
from kcoord_wire.report.page import write_html
from kcoord_wire.report.terminal import print_summary

__all__ = ["print_summary", "to_json", "write_html", "write_json"]
