"""The package as one file that travels to a cluster's executors.

    archive = package_archive("kcoord_wire.zip")
    spark-submit --py-files kcoord_wire.zip job.py
    spark-submit --archives kcoord_wire.zip#kcoord --conf spark.executorEnv.PYTHONPATH=kcoord job.py

Laws:

* It holds the modules, the schema files and the native modules of this platform; the executors need pyarrow beside it.
* Python cannot load a native module out of a zip. With ``--archives`` Spark has unpacked it; with ``--py-files`` the
  first import unpacks it beside itself, in the executor's own folder, or in a temporary folder where it may not write.
* Executors on another platform leave out what is built for this one and run the pure twin: a native module's file name
  tells its platform.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import kcoord_wire
from kcoord_wire.schema.files import schema_root

__all__ = ["package_archive", "submit_conf"]

_FOLDER: Final = "kcoord_wire_unpacked"
_SUFFIXES: Final = {".py", ".pyi", ".so", ".pyd", ".typed"}
_FIRST: Final = "kcoord_wire/__init__.py"
_ITSELF: Final = "kcoord_wire/_package.py"
_BOOTSTRAP: Final = '''\
"""kcoord_wire as it travels: unpacked on first import if it lies in a zip, then the package itself."""


def _unpacked(archive):
    import atexit
    import os
    import shutil
    import tempfile
    import zipfile

    folder = archive + ".unpacked"
    if os.path.isdir(folder):
        return folder
    try:
        scratch = tempfile.mkdtemp(dir=os.path.dirname(archive) or ".", prefix=".kcoord-")
    except OSError:
        scratch = tempfile.mkdtemp(prefix="kcoord-")
        atexit.register(shutil.rmtree, scratch, True)
        folder = scratch
    with zipfile.ZipFile(archive) as file:
        file.extractall(scratch)
    if folder != scratch:
        try:
            os.rename(scratch, folder)
        except OSError:  # another worker was first
            shutil.rmtree(scratch, True)
    return folder


def _settle():
    import os

    above = os.path.abspath(os.path.dirname(__path__[0]))
    if os.path.isfile(above):
        above = _unpacked(above)
        __path__[:] = [os.path.join(above, "kcoord_wire")]
    return os.path.join(__path__[0], "_package.py")


__file__ = _settle()
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''


def package_archive(path: str | Path) -> Path:
    """Write the package that is imported here as a zip to `path`, for ``--py-files``, ``--archives`` or `addPyFile`.

    :returns: `path`
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    package = Path(kcoord_wire.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_FIRST, _BOOTSTRAP)
        if not (package / "_package.py").exists():  # it is not itself out of such an archive
            archive.write(package / "__init__.py", _ITSELF)
        for file in _files(package):
            name = f"kcoord_wire/{file.relative_to(package)}"
            if name != _FIRST:
                archive.write(file, name)
        root = schema_root()
        if not root.is_relative_to(package):
            for file in sorted(root.rglob("*.json")):
                archive.write(file, f"kcoord_wire/_schemas/{file.relative_to(root)}")
    return path


def submit_conf(archive: str | Path) -> dict[str, str]:
    """The settings that send an archive to the executors, unpacked: what ``--archives`` says, for a session's conf."""
    return {"spark.archives": f"{archive}#{_FOLDER}", "spark.executorEnv.PYTHONPATH": _FOLDER}


def _files(package: Path) -> Iterator[Path]:
    for file in sorted(package.rglob("*")):
        if (file.suffix in _SUFFIXES and "__pycache__" not in file.parts) or (
            file.suffix == ".json" and "_schemas" in file.relative_to(package).parts
        ):
            yield file
