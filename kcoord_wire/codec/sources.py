"""The sources of the native modules, and their digest: `setup.py` compiles it in, `codec.backend` compares it.

`setup.py` runs this file by its path, before the package can be imported; it imports nothing of the package.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32


def files(folder: Path) -> list[Path]:
    """What the native modules are made of, in a fixed order; nothing where the folder is not there."""
    return sorted(path for path in folder.rglob("*.*") if path.suffix in {".pyx", ".pxd", ".pxi", ".h"})


def digest(folder: Path) -> int:
    """32 bits of the names and contents of `files`; 0 where there are none, as in an installed package."""
    value = 0
    for path in files(folder):
        value = crc32(path.name.encode() + b"\0" + path.read_bytes(), value)
    return value
