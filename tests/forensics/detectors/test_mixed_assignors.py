"""The detector mixed_assignors on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from kcoord_wire.forensics.model import (
    Offered,
    Subscription,
)
from tests.support.detector_groups import exchange, group, life, of


def offers(*assignors: str) -> list[Offered]:
    return [Offered(name, Subscription(["orders"], [], -1, None, b"")) for name in assignors]


def test_mixed_assignors_that_stay_side_by_side() -> None:
    rdkafka = life("py", assignors=["range"], library="librdkafka")
    java = life("java", assignors=["cooperative-sticky", "range"])
    (found,) = of("mixed_assignors", group(members=[rdkafka, java]))
    assert found.subject == "py"
    assert "eager to cooperative" in found.text
    assert "librdkafka" in found.text
    bouncing = [life("py", 0, 300), life("java", 0, assignors=["cooperative-sticky", "range"])]
    assert of("mixed_assignors", group(members=bouncing)) == []
    newer = [life("old"), life("new", protocol="consumer", assignors=[])]
    assert "KIP-848" in of("mixed_assignors", group(members=newer))[0].text
    refused = [exchange("JoinGroup", n, error_code=23, client_id="py", offered=offers("range")) for n in (5, 6)]
    (found,) = of("mixed_assignors", group(members=[java]), refused)
    assert (found.severity, found.subject, found.value) == ("critical", "py", 2)
    assert found.evidence[0].text == "it offers range"
