"""The report as an HTML page. `document` assembles the file, `data` builds the JSON that the scripts read."""

from kcoord_wire.report.page.document import write_html

__all__ = ["write_html"]
