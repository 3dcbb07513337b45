"""Kafka Connect and Kafka Streams 4.3.0 make the recorded bytes of their embedded protocols again, in all versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.support.kafka_broker import class_path, compile_java, run_java

VERSION: Final = "4.3.0"
GOLDEN: Final = Path(__file__).parents[1] / "data" / "golden" / "embedded.tsv"
SOURCE: Final = Path(__file__).parents[1] / "support" / "java" / "EmbeddedBytes.java"


def test_the_classes_make_the_recorded_bytes(tmp_path: Path) -> None:
    path = os.pathsep.join(class_path(artifact, VERSION) for artifact in ("connect-runtime", "kafka-streams"))
    made = run_java(compile_java(SOURCE, tmp_path, path), SOURCE.stem)
    assert made == GOLDEN.read_text("utf-8")
