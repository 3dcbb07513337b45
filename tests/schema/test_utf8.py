"""UTF-8 as Java decodes it. OpenJDK 17 printed the expected texts: new String(bytes, StandardCharsets.UTF_8)."""

from __future__ import annotations

import pytest

from kcoord_wire.schema.text import decode_like_java

JAVA = {
    "c080": "\ufffd\ufffd",
    "c1bf41": "\ufffd\ufffdA",
    "c3": "\ufffd",
    "c328": "\ufffd(",
    "e080": "\ufffd\ufffd",
    "e08080": "\ufffd\ufffd\ufffd",
    "e0a041": "\ufffdA",
    "e18041": "\ufffdA",
    "e180": "\ufffd",
    "e14180": "\ufffdA\ufffd",
    "eda080": "\ufffd",
    "eda041": "\ufffdA",
    "eda0": "\ufffd",
    "edbfbf41": "\ufffdA",
    "ed9fbf": "\ud7ff",
    "ed41": "\ufffdA",
    "eda080edb080": "\ufffd\ufffd",
    "f0808080": "\ufffd\ufffd\ufffd\ufffd",
    "f0900041": "\ufffd\x00A",
    "f09080": "\ufffd",
    "f0908041": "\ufffdA",
    "f0908080": "\U00010000",
    "f4908080": "\ufffd\ufffd\ufffd\ufffd",
    "f48fbfbf": "\U0010ffff",
    "f5808080": "\ufffd\ufffd\ufffd\ufffd",
    "f888808080": "\ufffd\ufffd\ufffd\ufffd\ufffd",
    "fffe": "\ufffd\ufffd",
    "80bf": "\ufffd\ufffd",
    "4af67267": "J\ufffdrg",
    "e282": "\ufffd",
    "e282ace228a1": "\u20ac\ufffd(\ufffd",
    "f18080e180c241": "\ufffd\ufffd\ufffdA",
    "efbfbd": "\ufffd",
    "ed9fe0bf": "\ufffd\ufffd",
    "edeeed": "\ufffd\ufffd\ufffd",
}


@pytest.mark.parametrize("raw", JAVA)
def test_malformed_text_reads_as_java_reads_it(raw: str) -> None:
    data = bytes.fromhex(raw)
    assert decode_like_java(data) == JAVA[raw]
    assert decode_like_java(memoryview(b"x" + data)) == "x" + JAVA[raw]
    assert decode_like_java(data + b"z" * 40) == JAVA[raw] + "z" * 40
