"""The files of a report in a folder: the tables (Parquet), report.json and report.html.

Laws:

* The folder is checked before a command does its work, so that nothing is lost for a typing error at its end.
* Each file is written beside its place and then moved there: an interrupt leaves no partial file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcoord_wire.forensics.model import GroupHistory, Loss


def make_writable(folder: Path) -> None:
    """Make the folder if it is not there.

    :raises OSError: it cannot be made, or nothing can be written into it
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_report(
    histories: Sequence[GroupHistory], losses: Sequence[Loss], folder: Path, *, title: str, source: str
) -> None:
    """Write the files, replacing those of another report.

    :param title: of the page
    :param source: what the histories are from, for the page
    :raises OSError: one cannot be written
    :raises MissingLibraryError: the extra ``analyze`` is not installed
    """
    from kcoord_wire.forensics.analysis import write_tables
    from kcoord_wire.report import write_html, write_json

    write_tables(histories, losses, folder)
    with _moved_when_complete(folder / "report.json") as path:
        write_json(histories, losses, path)
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
