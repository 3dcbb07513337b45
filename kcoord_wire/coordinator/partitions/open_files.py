"""Open files of topics, at most so many: a coordinator may have more partitions than a process may have open files."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kcoord_wire.kernel.disk import Disk, DiskFile

_MOST: Final = 256


class OpenFiles:
    """Files that stay open until others are used more recently.

    :param most: number of files
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._files: OrderedDict[tuple[int, str], DiskFile] = OrderedDict()  # by folder and name

    def get(self, folder: Disk, name: str, *, new: bool = False) -> DiskFile:
        """Return a file that is open.

        :param new: it is emptied, and made if it is missing
        :raises OSError: it cannot be opened
        """
        key = id(folder), name
        file = self._files.get(key)
        if file is None or new:
            self.close(folder, name)
            file = self._files[key] = folder.open(name, new=new)
            if len(self._files) > self._most:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(key)
        return file

    def close(self, folder: Disk, name: str) -> None:
        """Close a file if it is open."""
        file = self._files.pop((id(folder), name), None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        """Close all files."""
        while self._files:
            self._files.popitem()[1].close()
