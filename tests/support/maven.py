"""Jars for Spark's setting ``spark.jars``, and for programs in Java, fetched with Maven the first time."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.kafka_broker import tool
from tests.support.processes import locked

JARS: Final = Path(__file__).resolve().parents[2] / "build" / "interop" / "jars"
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kcoord_wire</groupId><artifactId>spark</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY: Final = """
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{alone}</dependency>"""
_ALONE: Final = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"

Artifact = tuple[str, str, str]
"""Group, name and version of a jar."""


def jars(name: str, *releases: Sequence[Artifact], whole: bool = False) -> str:
    """The jars of the first of these releases that the repository has.

    :param name: of the folder that keeps them
    :param whole: with what they depend on
    """
    folder = JARS / name
    said = ""
    with locked(folder):
        for artifacts in releases:
            if folder.exists():
                break
            scratch = folder.with_suffix(".part")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            pom = scratch / "pom.xml"
            alone = "" if whole else _ALONE
            pom.write_text(_POM.format("".join(_DEPENDENCY.format(*each, alone=alone) for each in artifacts)))
            command = [tool("mvn", "maven"), "--quiet", "--batch-mode", "--file", str(pom)]
            command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode == 0:
                scratch.rename(folder)
            said += done.stdout[-2000:]
    assert folder.exists(), said
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))
