"""What the commands share on the way out: JSON lines, tables, one line of complaint, the files of a report.

Laws:

* JSON is one object per line, tables are for people. Neither passes a control character of a peer's string to the
  terminal, and a peer's string is never markup.
* Only tables need rich.
* The folder of a report is checked before a command does its work, so that nothing is lost for a typing error at its
  end. Each file is written beside its place and then moved there: an interrupt leaves no partial file.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.codec.fields import printable
from kcoord_wire.extras import require

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kcoord_wire.forensics.model import GroupHistory, Loss

_WIDE: Final = 1 << 16  # columns where stdout is not a terminal, so that no line is wrapped


def complain(text: str) -> None:
    """Print one line on stderr that starts with ``kcoord:``."""
    print("kcoord:", printable(" ".join(text.split())), file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    text = json.dumps(value, ensure_ascii=False)
    print(re.sub("[\x7f-\x9f\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text))


def print_event(kind: str, **fields: Any) -> None:
    """Print an event of a stream as one line of JSON, at once."""
    json.dump({"type": kind, **fields}, sys.stdout)
    print(flush=True)


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


# ---- the files of a report


def make_writable(folder: Path) -> None:
    """Make the folder if it is not there.

    :raises OSError: it cannot be made, or nothing can be written into it
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_report(
    histories: Sequence[GroupHistory],
    losses: Sequence[Loss],
    folder: Path,
    *,
    title: str,
    source: str,
    stopped: float | None = None,
) -> None:
    """Write the files, replacing those of another report.

    :param title: of the page
    :param source: what the histories are from, for the page
    :param stopped: share of the sources that was read, where reading was stopped
    :raises OSError: one cannot be written
    :raises MissingLibraryError: the extra ``analyze`` is not installed
    """
    from kcoord_wire.forensics.analysis import write_tables
    from kcoord_wire.report import write_html, write_json

    write_tables(histories, losses, folder)
    with _moved_when_complete(folder / "report.json") as path:
        write_json(histories, losses, path, stopped=stopped)
    with _moved_when_complete(folder / "report.html") as path:
        write_html(histories, losses, path, title=title, source=source)


@contextmanager
def _moved_when_complete(path: Path) -> Iterator[Path]:
    """A path beside `path`; the file written there is moved to `path` if the block succeeds."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
