"""The package as one file for the executors of a cluster.

    archive = package_archive("kcoord_wire.zip")
    spark-submit --py-files kcoord_wire.zip job.py
    spark-submit --archives kcoord_wire.zip#kcoord --conf spark.executorEnv.PYTHONPATH=kcoord job.py

Laws:

* It holds the modules, the schema files and the native modules of this platform; the executors also need pyarrow.
* Python cannot load a native module from a zip. With ``--archives`` Spark unpacks the file; with ``--py-files`` the
  first import unpacks it into the executor's folder beside the file, or into a temporary folder if that is read-only.
* Executors on another platform ignore the native modules, whose file names contain the platform, and run the pure ones.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import kcoord_wire
from kcoord_wire.schema.files import schema_root

_FOLDER: Final = "kcoord_wire_unpacked"
_SUFFIXES: Final = {".py", ".pyi", ".so", ".pyd", ".typed"}
_FIRST: Final = "kcoord_wire/__init__.py"
_PACKAGE: Final = "kcoord_wire/_package.py"
_BOOTSTRAP: Final = '''\
"""kcoord_wire in an archive: the first import unpacks a zip, then runs the package."""


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
        except OSError:  # another worker has unpacked it first
            shutil.rmtree(scratch, True)
    return folder


def _located():
    import os

    above = os.path.abspath(os.path.dirname(__path__[0]))
    if os.path.isfile(above):
        above = _unpacked(above)
        __path__[:] = [os.path.join(above, "kcoord_wire")]
    return os.path.join(__path__[0], "_package.py")


__file__ = _located()
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))
'''


def package_archive(path: str | Path) -> Path:
    """Write the imported package to `path`, a zip for ``--py-files``, ``--archives`` or `SparkContext.addPyFile`.

    :returns: `path`
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    package = Path(kcoord_wire.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_FIRST, _BOOTSTRAP)
        if not (package / "_package.py").exists():  # this process does not run from an archive itself
            archive.write(package / "__init__.py", _PACKAGE)
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
    """The settings of a session that have Spark unpack an archive on the executors, as ``--archives`` does."""
    return {"spark.archives": f"{archive}#{_FOLDER}", "spark.executorEnv.PYTHONPATH": _FOLDER}


def _files(package: Path) -> Iterator[Path]:
    for file in sorted(package.rglob("*")):
        if (file.suffix in _SUFFIXES and "__pycache__" not in file.parts) or (
            file.suffix == ".json" and "_schemas" in file.relative_to(package).parts
        ):
            yield file
