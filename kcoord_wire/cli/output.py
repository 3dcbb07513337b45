"""What the commands share on the way out: JSON lines, tables, one line of complaint.

Laws:

* JSON is one object per line, tables are for people. Neither passes a control character of a peer's string to the
  terminal, and a peer's string is never markup.
* Only tables need rich.
"""

from __future__ import annotations

import io
import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.codec.fields import printable
from kcoord_wire.extras import require

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WIDE: Final = 1 << 16  # columns where stdout is not a terminal, so that no line is wrapped


def complain(text: str) -> None:
    """Print one line on stderr that starts with ``kcoord:``."""
    print("kcoord:", printable(" ".join(text.split())), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    text = json.dumps(value, ensure_ascii=False)
    print(re.sub("[\x7f-\x9f\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text))


def table(title: str, *columns: str) -> Table:
    """An empty table.

    :raises MissingLibraryError: rich is not installed
    """
    require("rich", "cli", "a table (JSON is none)")
    from rich.table import Table

    made = Table(title=styled(title, "bold") if title else None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, header_style="dim", overflow="fold")
    return made


def styled(text: str, style: str = "") -> Text:
    """Text of a table, with its control characters escaped and without markup."""
    from rich.text import Text

    return Text(printable(text), style)


def print_table(made: Table) -> None:
    """Print a table, in colour and wrapped to its width where stdout is a terminal."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), force_terminal=terminal, width=None if terminal else _WIDE, highlight=False)
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    print("\n".join(line.rstrip() for line in console.file.getvalue().splitlines()), end="\n\n")
