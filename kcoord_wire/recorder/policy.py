"""What the recorder does with each api: follow it to its response, record it, rewrite the addresses in it.

Laws:

* No produced or fetched record is recorded unless everything is; of Fetch, only the numbers are (`fetches`).
* Passwords are never recorded: SaslAuthenticate is only followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kcoord_wire.protocol.api_keys import ApiKey

TRACKED, RECORDED, REWRITTEN, NUMBERS = 1, 2, 4, 8
"""The request is remembered until its response; its frames are recorded; the addresses in its response are replaced;
of its frames only the numbers of partitions are recorded."""

_WITH_ADDRESSES: Final = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)

GROUP_APIS: Final = frozenset(
    (
        *_WITH_ADDRESSES,
        ApiKey.API_VERSIONS,
        ApiKey.LIST_OFFSETS,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
    )
)
"""The apis of consumer groups, those that clients need to reach them, and the one that says where partitions end."""


def plan_of(apis: str, *, rewrite: bool) -> Callable[[int], int]:
    """Return what is done with an api key, as a sum of `TRACKED`, `RECORDED`, `REWRITTEN` and `NUMBERS`.

    :param apis: ``group`` or ``all``
    """
    plan: dict[int, int] = dict.fromkeys(GROUP_APIS, TRACKED | RECORDED)
    plan[ApiKey.FETCH] = TRACKED | NUMBERS
    other = 0
    if apis == "all":
        other = TRACKED | RECORDED
        plan[ApiKey.FETCH] = other
        plan[ApiKey.PRODUCE] = RECORDED  # without a response if no acknowledgement is asked for
        plan[ApiKey.SASL_AUTHENTICATE] = TRACKED
    if rewrite:
        for api_key in _WITH_ADDRESSES:
            plan[api_key] |= REWRITTEN
    return lambda api_key: plan.get(api_key, other)
