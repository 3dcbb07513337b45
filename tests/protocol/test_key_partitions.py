"""Groups and transactional ids have the partitions that Kafka gives them."""

from __future__ import annotations

from kcoord_wire.protocol.key_partitions import partition_of


def test_a_group_has_kafkas_partition_of_the_offsets_topic() -> None:
    """Numbers of java.lang.String.hashCode, modulo 50. That of "polygenelubricants" is Integer.MIN_VALUE."""
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("hello", 50) == 99162322 % 50
    assert partition_of("billing", 50) == abs(-109829509) % 50


def test_a_long_key_has_the_partition_of_its_hash() -> None:
    """The hash of n letters a is 97 * (31^n - 1) / 30, modulo 2^32."""
    code = 97 * ((31**300 - 1) // 30) % (1 << 32)
    assert partition_of("a" * 300, 50) == abs(code - (1 << 32) if code >= 1 << 31 else code) % 50
