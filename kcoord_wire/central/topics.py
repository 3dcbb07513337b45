"""A broker's topics: generated records, and the fences of the consumers that fetch them.

Every broker generates its own partitions from two numbers, a rate and an instant, so none keeps data and a restart
changes nothing.

Laws:

* Record n of a partition is the text ``TOPIC-BROKER-NUMBER@n``, for every request at any time.
* The end of a partition grows with time and never goes back, also if the clock does.
* A fetch with a fence is refused, ``STALE_EPOCH``, once a fetch with a higher one (epoch, then generation) has come for
  the same group and partition, or with an equal one of another consumer. Fetches without a fence are always served, as
  in 0.7: of them, two owners are possible.
* An answer has at most `LARGEST_FETCH` bytes of records, whatever was asked for.

Source: "the 0.8 consumer-coordinator draft", section 2; the fetch request of Kafka 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kcoord_wire.central.draft.events import CentralError, Fence
from kcoord_wire.messages import central as m

LARGEST_FETCH: Final = 1 << 16
"""Bytes of records in one answer: 4 ms of work, for which the other connections wait."""
_RECORD_OVERHEAD: Final = 12  # offset and length
_MOST_FENCES: Final = 100_000
_SEGMENTS: Final = 10
_MS: Final = 1000


class _Owner(NamedTuple):
    fence: Fence
    consumer_id: str


class GeneratedTopics:
    """The partitions of one broker.

    :param partitions: number of partitions of each topic; it may grow
    :param since_ms: when the first record came, in ms since 1970
    :param rate: records a second, of each partition
    :param kept: of the newest records; older ones go in segments of a tenth of it, so that a consumer can fall out of
        range. None for all
    """

    def __init__(
        self, broker_id: int, partitions: Mapping[str, int], since_ms: int, rate: float, *, kept: int | None = None
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._since_ms = since_ms
        self._rate = rate
        self._kept = kept
        self._newest_ms = since_ms
        self._owners: dict[tuple[str, str, int], _Owner] = {}

    def fetch(self, request: m.CentralFetchRequest, now_ms: int) -> m.CentralFetchResponse:
        """Answer a fetch.

        :param now_ms: since 1970
        :returns: with the first and the end offset also where the offset is out of range. ``STALE_EPOCH`` and
            ``UNKNOWN_TOPIC_OR_PARTITION`` come without.
        """
        if not 0 <= request.partition < self._partitions.get(request.topic, 0):
            return m.CentralFetchResponse(error_code=CentralError.UNKNOWN_TOPIC_OR_PARTITION)
        if request.fence and not self._is_owner(request, request.fence[0]):
            return m.CentralFetchResponse(error_code=CentralError.STALE_EPOCH)
        end = self._end(now_ms)
        first = 0 if self._kept is None else max(0, end - self._kept)
        first -= first % max(1, (self._kept or 0) // _SEGMENTS)
        response = m.CentralFetchResponse(first_offset=first, end_offset=end)
        if first <= request.offset <= end:
            response.records = self._records(request, end)
        else:
            response.error_code = CentralError.OFFSET_OUT_OF_RANGE
        return response

    def _end(self, now_ms: int) -> int:
        self._newest_ms = max(self._newest_ms, now_ms)
        return int((self._newest_ms - self._since_ms) * self._rate / _MS)

    def _records(self, request: m.CentralFetchRequest, end: int) -> list[m.CentralFetchResponseRecord]:
        records = []
        left = min(request.max_size, LARGEST_FETCH)
        for offset in range(request.offset, end):
            payload = f"{request.topic}-{self._broker_id}-{request.partition}@{offset}".encode()
            left -= len(payload) + _RECORD_OVERHEAD
            if left < 0:
                break
            records.append(m.CentralFetchResponseRecord(offset=offset, payload=payload))
        return records

    def _is_owner(self, request: m.CentralFetchRequest, sent: m.CentralFetchRequestFence) -> bool:
        """Whether no later assignment has shown itself; this one is remembered then."""
        key = sent.group_id, request.topic, request.partition
        owner = _Owner(Fence(sent.epoch, sent.generation), sent.consumer_id)
        known = self._owners.get(key)
        if known is not None and known.fence >= owner.fence and known != owner:
            return False
        if known is None and len(self._owners) >= _MOST_FENCES:  # of groups that are gone, or invented
            del self._owners[next(iter(self._owners))]
        self._owners.pop(key, None)  # the least recently used comes first
        self._owners[key] = owner
        return True
