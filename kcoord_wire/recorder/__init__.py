"""The recording proxy for Kafka clients (`proxy`), and the format of its recordings (`recording`).

To record another api, add it to `counters.GROUP_APIS`; to rewrite addresses in another response, to `_WITH_ADDRESSES`
there, with the name of its list in `bodies`.
"""

__all__: list[str] = []
