"""How much clients may set for brokers and groups, which need not exist: the bounds of what is remembered for them.

Source: kafka `ConfigurationControlManager.java`, which has no such bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcoord_wire.coordinator.partitions.batch_header import Refused
from kcoord_wire.coordinator.partitions.journal import Owner
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_OWNERS: Final = 10_000
"""Brokers and groups with configs of their own."""

MOST_CHARACTERS: Final = 4 << 20
"""Characters of their names and configs together."""


class ConfigRoom:
    """How much clients may still set for brokers and groups.

    :param configs: what they have set
    """

    def __init__(self, configs: Mapping[Owner, Mapping[str, str]]) -> None:
        self._sizes = {owner: _size(owner, own) for owner, own in configs.items()}
        self._total = sum(self._sizes.values())

    def take(self, owner: Owner, new: Mapping[str, str]) -> None:
        """Note what a broker or group is to have in place of what it had.

        :raises Refused: POLICY_VIOLATION, it is more than there is room for
        """
        before = self._sizes.get(owner, 0)
        after = _size(owner, new) if new else 0
        if after > before:
            if not before and len(self._sizes) >= MOST_OWNERS:
                detail = f"{MOST_OWNERS:,} brokers and groups have configs of their own; there is no room for more."
                raise Refused(ErrorCode.POLICY_VIOLATION, detail)
            if self._total + after - before > MOST_CHARACTERS:
                detail = f"The configs of brokers and groups may have {MOST_CHARACTERS:,} characters together."
                raise Refused(ErrorCode.POLICY_VIOLATION, detail)
        self._total += after - before
        self._sizes[owner] = after
        if not after:
            del self._sizes[owner]


def _size(owner: Owner, configs: Mapping[str, str]) -> int:
    return len(owner[1]) + sum(len(name) + len(value) for name, value in configs.items())
