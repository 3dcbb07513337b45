"""What the commands share on the way out: JSON lines, tables, one line of complaint, the files of a report.

Laws:

* JSON is one object per line, tables are for people. Neither passes a control character of a peer's string to the
  terminal, and a peer's string is never markup.
* Nothing needs rich: without it tables have no colour and lines are as long as their cells.
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
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.codec.fields import printable
from kcoord_wire.extras import MissingLibraryError, require

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


class _PlainTable:
    """What the commands use of rich's table, for a base install."""

    def __init__(self, title: str, columns: Sequence[str], right: Sequence[int]) -> None:
        self._title = title
        self._right = right
        self._rows: list[Sequence[str | Text]] = [columns]

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; a cell may have lines."""
        self._rows.append(cells)

    @property
    def row_count(self) -> int:
        """Rows below the heads of the columns."""
        return len(self._rows) - 1

    def __str__(self) -> str:
        rows = [[str(cell).split("\n") for cell in row] for row in self._rows]
        widths = [max(len(line) for cell in column for line in cell) for column in zip_longest(*rows, fillvalue=[""])]
        forms = [f"{'>' if index in self._right else '<'}{width}" for index, width in enumerate(widths)]
        lines = [
            "  ".join(format(text, form) for text, form in zip(line, forms, strict=False))
            for row in rows
            for line in zip_longest(*row, fillvalue="")
        ]
        return "\n".join([self._title, *lines] if self._title else lines)


def table(title: str, *columns: str, right_from: int | None = None) -> Table | _PlainTable:
    """An empty table.

    :param right_from: the first of the last columns that hold numbers, and are flush right
    """
    right = range(len(columns))[len(columns) if right_from is None else right_from :]
    if not _has_rich():
        return _PlainTable(printable(title), columns, right)
    from rich.table import Table

    made = Table(title=styled(title, "bold") if title else None, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, header_style="dim", overflow="fold", justify="right" if index in right else "left")
    return made


def styled(text: str, style: str = "") -> str | Text:
    """Text of a table, with its control characters escaped and without markup."""
    if not _has_rich():
        return printable(text)
    from rich.text import Text

    return Text(printable(text), style)


def print_table(made: Table | _PlainTable) -> None:
    """Print a table, in colour and wrapped to its width where stdout is a terminal and rich is installed."""
    if isinstance(made, _PlainTable):
        text = str(made)
    else:
        from rich.console import Console

        tty = sys.stdout.isatty()
        console = Console(file=io.StringIO(), force_terminal=tty, width=None if tty else _WIDE, highlight=False)
        console.print(made)
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
    print("\n".join(line.rstrip() for line in text.splitlines()), end="\n\n")


@cache
def _has_rich() -> bool:
    try:
        require("rich", "cli", "a table with colours")
    except MissingLibraryError:
        return False
    return True


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
