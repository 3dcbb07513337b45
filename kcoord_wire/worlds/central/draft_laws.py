"""The laws of a virtual cluster of the draft, checked as things happen and cheap enough to be always on.

The laws, by the name that a violation carries:

``one writer``      a write about a group is executed only for the session that was elected last for its subset
``one coordinator`` a broker asks consumers for something only while ZooKeeper has it as the coordinator of their group;
                    where others have ended its session or deleted its node, also for its lease after that
``one owner``       once another consumer of its group was served a partition, a consumer that fetches it is refused
``offsets``         a committed offset never goes back; none is committed that was not consumed; a consumer starts at
                    the committed offset, which is not below what the last owner reported to the same coordinator
``no gap``          a consumer goes on where its group has consumed everything before, unless its offset was reset
``one handler``     a coordinator rebalances a group once at a time: what it sends belongs to the rebalance begun last
``patience``        a consumer whose connection is open is taken for failed only while an answer of it is overdue; and
                    for want of one an attempt to rebalance fails only where that to its own request is
``settles``         (checked by the script) after the last fault every partition is owned, consumed and committed within
                    a bound, nothing is left waiting, and no broker coordinates two more subsets than another

The checks see messages, fetches and writes; they do not look into a machine, so a mistake in it cannot hide itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.central.dialects import ASKED_BY_COORDINATOR
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.messages import central as m
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.zookeeper.layout import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, election_of, offset_path
from kcoord_wire.zookeeper.leadership import LEASE_PARTS
from kcoord_wire.zookeeper.requests import Create, SetData, Write

if TYPE_CHECKING:
    from kcoord_wire.worlds.central.draft_processes import Fetching
    from kcoord_wire.worlds.central.zookeeper import VirtualZooKeeper

_ANSWERS: Final = (m.PingResponse, m.StopFetcherResponse)
_ANSWER_TO: Final[Mapping[type, type]] = {
    m.PingRequest: m.PingResponse,
    m.StopFetcherRequest: m.StopFetcherResponse,
    m.StartFetcherRequest: m.StartFetcherResponse,
}
_REBALANCES: Final = (m.StopFetcherRequest, m.StartFetcherRequest)
_STARTS: Final = (m.StartFetcherRequest, m.RegisterConsumerResponse)


class Place(NamedTuple):
    """A partition, as a group consumes it."""

    group: str
    partition: Partition


class _Term:
    """What a coordinator knows of positions, from its election on.

    :ivar given: to which connection it gave a partition last
    :ivar reported: the offset that this connection has reported last
    :ivar generations: of each group, the last that it has begun to bring
    :ivar asked: by consumer id
    """

    __slots__ = ("asked", "generations", "given", "reported")

    def __init__(self) -> None:
        self.asked: dict[str, _Asked] = {}
        self.given: dict[Place, int] = {}
        self.reported: dict[Place, int] = {}
        self.generations: dict[str, int] = {}


class _Asked:
    """The requests to a consumer on one connection that it has not answered.

    :ivar due: when answers are overdue, ms, in the order of the requests; by the answer's class
    """

    __slots__ = ("connection", "due")

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.due: dict[type, deque[int]] = {answer: deque() for answer in _ANSWER_TO.values()}


class Invariants:
    """Checks the laws.

    :param zookeeper_timeout_ms: of the brokers' sessions
    :param subsets: of the groups, each with a coordinator
    :ivar deposed_messages: number of requests to consumers that a broker has sent while another one, or none, was the
        coordinator, by the class of the message
    :ivar consumed_to: where each group has consumed everything before, by partition
    """

    def __init__(self, clock: VirtualClock, zookeeper_timeout_ms: int, subsets: int = 1) -> None:
        self.deposed_messages: Counter[str] = Counter()
        self.consumed_to: dict[Place, int] = {}
        self.zookeeper: VirtualZooKeeper
        self._clock = clock
        self._lease_ms = zookeeper_timeout_ms // LEASE_PARTS
        self._taken_at = 0
        self._subsets = subsets
        self._elections = {election_of(subset)[0]: subset for subset in range(subsets)}
        self._elected: dict[int, int] = {}  # the session, by subset
        self._committed: dict[str, int] = {}
        self._served: dict[Place, Fetching] = {}
        self._ended: dict[Place, set[Fetching]] = {}
        self._terms: dict[tuple[int, int], _Term] = {}  # by broker and subset

    # ---- ZooKeeper

    def written(self, writes: tuple[Write, ...], session_id: int) -> None:
        """ZooKeeper has executed the writes of one request."""
        for write in writes:
            if isinstance(write, Create) and write.path in self._elections:
                self._elected[self._elections[write.path]] = session_id
                return
        for write in writes:
            if isinstance(write, Create | SetData) and _is_of_group(write.path):
                self._note_write(write, session_id)

    def _note_write(self, write: Create | SetData, session_id: int) -> None:
        last = self._elected.get(self.subset_of(write.path.split("/")[2]), 0)
        if session_id != last:
            who, elected = (self.zookeeper.clients.get(each) for each in (session_id, last))
            text = f"{who} has written {write.path} with session {session_id:#x}; {elected} was elected last"
            raise ViolationError("one writer", f"{text}, with session {last:#x}")
        if "/offsets/" in write.path and write.data:
            self._note_commit(write.path, int(write.data))

    def subset_of(self, group: str) -> int:
        """Return the subset that a group belongs to."""
        return partition_of(group, self._subsets)

    def _note_commit(self, path: str, offset: int) -> None:
        before = self._committed.get(path, -1)
        if offset < before:
            raise ViolationError("offsets", f"{path} goes back from {before} to {offset}")
        self._committed[path] = offset
        _, _, group, _, topic, name = path.split("/")
        consumed = self.consumed_to.get(Place(group, Partition(topic, name)), 0)
        if offset > consumed:
            raise ViolationError("offsets", f"{path} becomes {offset}; the group has consumed to {consumed}")

    # ---- the brokers

    def started(self, broker_id: int) -> None:
        """A broker has started."""
        for subset in range(self._subsets):
            self.term_changed(broker_id, subset)

    def term_changed(self, broker_id: int, subset: int) -> None:
        """A broker was elected or has resigned: it knows nothing."""
        self._terms[broker_id, subset] = _Term()

    def _term(self, broker_id: int, group: str) -> _Term:
        return self._terms[broker_id, self.subset_of(group)]

    def takes_in(self, broker_id: int, connection: int, group: str, message: Any) -> None:
        """A coordinator takes in a consumer's answer with its offsets."""
        term = self._term(broker_id, group)
        asked = term.asked.get(getattr(message, "consumer_id", ""))
        if asked is not None and asked.connection == connection and (due := asked.due.get(type(message))):
            due.popleft()
        if not isinstance(message, _ANSWERS) or message.error_code:
            return
        for entry in message.offset_info or ():
            place = Place(group, Partition(entry.topic, entry.partition))
            if term.given.get(place) == connection:
                term.reported[place] = max(entry.offset, term.reported.get(place, 0))

    def sends(
        self, broker_id: int, connection: int, group: str, message: Any, session_ms: int, *, is_leader: bool
    ) -> None:
        """A broker sends a message to a consumer with this session timeout."""
        if not is_leader and isinstance(message, ASKED_BY_COORDINATOR):
            self._note_deposed(broker_id, message)
        term = self._term(broker_id, group)
        if (answer := _ANSWER_TO.get(type(message))) is not None:
            asked = term.asked.get(message.consumer_id)
            if asked is None or asked.connection != connection:
                asked = term.asked[message.consumer_id] = _Asked(connection)
            asked.due[answer].append(self._clock.time_ms + session_ms * 2 // 3)
        if isinstance(message, _REBALANCES) and message.fence:
            self._check_generation(term, group, message)
        if not isinstance(message, _STARTS):
            return
        for owned in message.ownership_info or ():
            for part in owned.assigned_parts:
                place = Place(group, Partition(part.topic, part.partition))
                self._check_start(term, place, part.offset)
                if term.given.get(place) != connection:
                    term.given[place] = connection
                    term.reported.pop(place, None)

    def _note_deposed(self, broker_id: int, message: Any) -> None:
        self.deposed_messages[type(message).__name__] += 1
        if self._clock.time_ms > self._taken_at + self._lease_ms:
            text = f"broker {broker_id}, which is not the coordinator, sends {type(message).__name__}"
            raise ViolationError("one coordinator", text)

    def taken_away(self) -> None:
        """Another client has ended the coordinator's session, or deleted its node: it may not know for its lease."""
        self._taken_at = self._clock.time_ms

    def _check_generation(self, term: _Term, group: str, message: Any) -> None:
        last, generation = term.generations.get(group, 0), message.fence[0].generation
        if generation != last:
            text = f"{type(message).__name__} of group {group!r} has generation {generation}; {last} was begun last"
            raise ViolationError("one handler", text)

    def _check_start(self, term: _Term, place: Place, offset: int) -> None:
        reported = term.reported.get(place)
        if reported is not None and offset < reported:
            raise ViolationError("offsets", f"{_text(place)} starts at {offset}; its last owner reported {reported}")
        committed = self._committed.get(offset_path(place.group, *place.partition), -1)
        if offset != committed and max(offset, committed) >= 0:
            raise ViolationError("offsets", f"{_text(place)} starts at {offset}; {committed} is committed")

    def noted(self, broker_id: int, what: str, group: str, generation: int) -> None:
        """A coordinator has begun or completed a rebalance."""
        generations = self._term(broker_id, group).generations
        last = generations.get(group, 0)
        if generation < last or (what == "rebalance started" and generation == last):
            text = f"broker {broker_id}: {what}, group {group!r}, generation {generation}; {last} was begun before"
            raise ViolationError("one handler", text)
        generations[group] = generation

    def failed(self, broker_id: int, group: str, consumer_id: str, reason: str) -> None:
        """A coordinator takes a consumer for failed, whose connection is open."""
        due = self._due(broker_id, group, consumer_id, *_ANSWER_TO.values())
        if not due or min(due) > self._clock.time_ms:
            text = f"broker {broker_id} takes {consumer_id} for failed, which has time for its answers until {due}"
            raise ViolationError("patience", f"{text}: {reason}")

    def attempt_failed(self, broker_id: int, group: str, consumer_id: str) -> None:
        """An attempt to rebalance a group has failed, because a consumer did not answer in time."""
        due = self._due(broker_id, group, consumer_id, m.StopFetcherResponse, m.StartFetcherResponse)
        if not due or max(due) > self._clock.time_ms:
            text = f"broker {broker_id} does not wait for {consumer_id}, which has time for its answers until {due}"
            raise ViolationError("patience", text)

    def _due(self, broker_id: int, group: str, consumer_id: str, *answers: type) -> list[int]:
        asked = self._term(broker_id, group).asked.get(consumer_id)
        return [] if asked is None else [due for answer in answers for due in asked.due[answer]]

    # ---- fetches

    def serves(self, fetching: Fetching, broker_id: int, request: m.CentralFetchRequest) -> None:
        """A broker serves a fetch. One of a fetcher that has been stopped meanwhile does no harm."""
        partition = Partition(request.topic, f"{broker_id}-{request.partition}")
        place = Place(fetching.process.settings.group_id, partition)
        last = self._served.get(place)
        if last is fetching or not fetching.is_running:
            return
        ended = self._ended.setdefault(place, set())
        if fetching in ended:
            text = f"{_text(place)} is fetched by {fetching} after it was fetched by {last}"
            raise ViolationError("one owner", text)
        if last is not None:
            ended.add(last)
        self._served[place] = fetching

    def consumed(self, fetching: Fetching, partition: Partition, start: int, end: int) -> None:
        """An application has consumed the records from `start` to before `end`."""
        place = Place(fetching.process.settings.group_id, partition)
        before = self.consumed_to.get(place, 0)
        if start > before:
            raise ViolationError("no gap", f"{fetching} consumes {_text(place)} from {start}; {before} would be next")
        self.consumed_to[place] = max(before, end)

    def reset(self, fetching: Fetching, partition: Partition, offset: int) -> None:
        """A consumer begins at the oldest record, or at the newest, because its offset is not known or out of range."""
        place = Place(fetching.process.settings.group_id, partition)
        self.consumed_to[place] = max(offset, self.consumed_to.get(place, 0))


def _text(place: Place) -> str:
    return f"{place.partition.topic}-{place.partition.name} of {place.group!r}"


def _is_of_group(path: str) -> bool:
    return path.startswith(f"{CONSUMERS}/") and path not in (COORDINATOR, COORDINATOR_EPOCH)
