"""What pyproject.toml cannot say: the native modules, the schema files inside the wheel, and the README of an index.

Switches, all from the environment:

* ``KCOORD_WIRE_REQUIRE_NATIVE=1``: a native module that does not build is an error. Without it the package is built in
  pure Python and one line on stderr says so.
* ``KCOORD_WIRE_DEBUG=1``: no optimisation, debug symbols, Cython's own bounds checks.
* ``KCOORD_WIRE_SANITIZE=address``: the compiler's sanitizer of that name, together with ``undefined``.

The native modules know the layout of CPython's objects. PyPy and others get the pure package, without trying.

A digest of their sources is compiled in: beside other sources they refuse to load (`kcoord_wire/codec/backend.py`).
"""

import os
import platform
import re
import runpy
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CCompilerError, CompileError, ExecError, LinkError, PlatformError
from setuptools.modified import newer_group

SOURCES = Path("_speedups")
MODULES = {"native": "objects/native.pyx", "columns": "columns/columns.pyx"}
INCLUDED = [str(SOURCES), str(SOURCES / "objects"), str(SOURCES / "columns")]
REQUIRED = os.environ.get("KCOORD_WIRE_REQUIRE_NATIVE") == "1"
DEBUG = os.environ.get("KCOORD_WIRE_DEBUG") == "1"
SANITIZE = os.environ.get("KCOORD_WIRE_SANITIZE", "")
NO_COMPILER = (CCompilerError, CompileError, ExecError, LinkError, PlatformError, FileNotFoundError)


def native_modules() -> list[Extension]:
    """The extensions: messages to objects, frames to columns; with flags for this platform and these switches.

    The flags and the digest are kept in a file that the modules depend on: another of either is another build.
    Python's own flags have -g: without symbols a module is 0.2 MB instead of 1.5, and its code the same.
    """
    if platform.python_implementation() != "CPython":
        if REQUIRED:
            raise SystemExit(f"kcoord_wire: there are no native modules for {platform.python_implementation()}")
        return []
    compile_args = [] if sys.platform == "win32" else ["-O0", "-g"] if DEBUG else ["-O3", "-g0"]
    link_args = [] if DEBUG or SANITIZE or not sys.platform.startswith("linux") else ["-Wl,--strip-all"]
    if SANITIZE:
        link_args = [f"-fsanitize={SANITIZE},undefined"]
        compile_args += ["-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined", *link_args]
    sources = runpy.run_path("kcoord_wire/codec/sources.py")
    digest = str(sources["digest"](SOURCES))
    flags = Path("build", "native.flags")
    text = " ".join([*compile_args, *link_args, digest])
    if not flags.exists() or flags.read_text() != text:
        flags.parent.mkdir(exist_ok=True)
        flags.write_text(text)
    return [
        Extension(
            f"kcoord_wire._{name}",
            [str(SOURCES / source)],
            include_dirs=INCLUDED,
            define_macros=[("KCOORD_WIRE_SOURCES", f"{digest}u")],
            depends=[*map(str, sources["files"](SOURCES)), str(flags), "setup.py"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for name, source in MODULES.items()
    ]


class BuildNative(build_ext):
    """Builds the native modules, or goes on without them where no C compiler is."""

    def run(self) -> None:
        try:
            super().run()
        except NO_COMPILER:
            if REQUIRED or self.compiler_works():
                raise
            self.extensions = self.distribution.ext_modules = []
            wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
            if wheel is not None:
                wheel.root_is_pure = True
            print("kcoord_wire: no working C compiler: this build is pure Python, slower but the same", file=sys.stderr)

    def compiler_works(self) -> bool:
        """Whether the compiler takes an empty file: if so, what it did not take is our fault or the flags'."""
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.c")
            empty.write_text("int kcoord_wire_empty;\n")
            try:
                return bool(self.compiler.compile([str(empty)], output_dir=folder))
            except (*NO_COMPILER, AttributeError):
                return False

    def build_extension(self, ext: Extension) -> None:
        from Cython.Build import cythonize

        c_file = Path("build", "cython", ext.sources[0]).with_suffix(".c")
        if self.force or newer_group(ext.depends, str(c_file)):
            cythonize(
                [ext],
                build_dir="build/cython",
                include_path=INCLUDED,
                force=True,
                compiler_directives={
                    "language_level": 3,
                    "boundscheck": DEBUG,
                    "wraparound": False,
                    "cdivision": True,
                    "auto_pickle": False,  # its __setstate__ would let Python code set pointers and offsets
                },
            )
        ext.sources = [str(c_file)]
        super().build_extension(ext)


class BuildPython(build_py):
    """Copies the schema files beside the modules; an editable install reads them where they lie."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "kcoord_wire", "_schemas")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("schemas", target)


def readme() -> str:
    """The README, its links to files made absolute where pyproject.toml knows the project's address.

    They lead to the release's tag, as GitHub and Gitea lay out addresses, so that they stay as they were released.
    """
    text = Path("README.md").read_text("utf-8")
    source = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]["urls"].get("Source")
    if source is None:
        return text
    [version] = re.findall(r'^__version__ = "(.+)"$', Path("kcoord_wire/__init__.py").read_text("utf-8"), re.M)
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({source}/blob/v{version}/", text)


setup(
    ext_modules=native_modules(),
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
