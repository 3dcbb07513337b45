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


def test_a_refusal_that_is_over_is_a_warning() -> None:
    java = life("java", assignors=["cooperative-sticky"])
    refused = [exchange("JoinGroup", n, error_code=23, client_id="py", offered=offers("range")) for n in (5, 6)]
    joined = exchange("JoinGroup", 9, client_id="py", member_id="", given_member_id="py-id")
    (found,) = of("mixed_assignors", group(members=[java]), [*refused, joined])
    assert found.severity == "warning"
    assert "py could not join" in found.text
    assert "it joined 3.0 s after the last refusal" in found.text
    twin = [exchange("JoinGroup", n, client_id="py", member_id="t", given_member_id="t") for n in (1, 9)]
    (found,) = of("mixed_assignors", group(members=[java]), [*refused, *twin])
    assert found.severity == "critical", "the one that joins is another, which was in the group before"
    (found,) = of("mixed_assignors", group(members=[life("java", 0, 20)]), refused)
    assert found.severity == "warning"
    assert found.text.endswith("; the group was empty at the end of the source")
