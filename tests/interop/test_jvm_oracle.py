"""Every generated message of Kafka's own jars, at every version, against ours: what becomes of values and of bytes.

The oracle is the jar's classes (tests/support/java/Oracle.java). They write values, and read bytes, that are drawn from
a seed. Compared are the messages and versions that there are, the defaults, the bytes, and the values read back; null
where it is not allowed, and fields that a version does not have, which are dropped or refused; and the verdict on
damaged bodies. Native, pure Python and construct take part, in strict and in lenient mode.

More seeds: ``python -m tests.support.jvm_oracle --seeds 1 20``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jvm_oracle import JARS, Jar, compare, compile_oracle

SEED = 20_261_122
HELD = {
    "kafka-clients-3.9.2": (186, 666),
    "kafka-clients-4.4.0": (195, 640),
    "kafka-group-coordinator-4.4.0": (44, 52),
    "kafka-metadata-4.4.0": (27, 38),
    "kafka-share-coordinator-4.4.0": (4, 4),
}
"""Messages, and messages at their versions, by jar."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_oracle(tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("jar", JARS, ids=str)
def test_kafkas_own_classes_agree(jar: Jar, program: Path, tmp_path: Path) -> None:
    found = compare(jar, SEED, program, tmp_path)
    assert not found.differences, found.text
    messages, pairs = HELD[str(jar)]  # so that nothing is left out
    assert (found.messages, found.pairs, found.counts["defaults"]) == (messages, pairs, messages)
    assert found.counts["values"] == found.counts["bytes read"] == 3 * pairs
    for kind in ("refused", "damaged read", "damaged refused"):
        assert found.counts[kind] > 0, found.counts
    assert (found.counts["dropped"] > 0) == (pairs > messages), found.counts  # no version, nothing that it lacks
