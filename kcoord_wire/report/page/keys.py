"""The JSON that `data` writes into the page and the scripts read: every object, every key.

Laws:

* Keys are short because a page has thousands of rows. Each key is declared here, written by `data` or `lanes`, and read
  by a script or by `plain`. Keys without a comment are columns of the row type in `kcoord_wire.forensics.model`.
* Times are milliseconds after the group's first moment, durations milliseconds. Strings are printable and bounded.
* A colour is never the only sign of a cause: in charts each has its own row, in tables its name.
* Every colour has a contrast of at least 3:1 against the page, light and dark. Families share a hue: faults of clients
  are orange to red, joins and departures blue, changes green and brown, the coordinator violet, consequences grey.
"""

from typing import Any, Final, NotRequired, TypedDict

from kcoord_wire.forensics.model import GroupHistory


class CauseKeys(TypedDict):
    """A cause: its colour in charts and tables, and a sentence about it."""

    colour: str
    about: str


class LossKeys(TypedDict):
    """A row of `Loss`: ``loss`` in the scripts."""

    source: str
    at: int  # its position
    what: str
    bytes: int
    count: int


class TotalKeys(TypedDict):
    """Sums over all losses."""

    places: int  # number of losses
    count: int
    bytes: int


class LaneKeys(TypedDict):
    """A client: ``lane`` in the scripts."""

    label: str
    host: str
    about: str
    lives: list[list[Any]]  # [start, end, why it left, member id], in order of time
    dead: list[list[float]]  # [start, end, partitions]: dead, and an owner for the coordinator


class RebalanceKeys(TypedDict):
    """A row of `Rebalance`: ``row`` in the scripts. Unknown and empty values have no key."""

    n: int  # number
    start: float
    end: float
    iso: str  # start, as a date and time
    cause: str
    gen: NotRequired[int]  # generation
    joined: NotRequired[float]
    outcome: NotRequired[str]
    who: NotRequired[str]  # client or member that set it off
    member: NotRequired[str]  # its member id
    host: NotRequired[str]  # its host
    reason: NotRequired[str]
    detail: NotRequired[str]
    sure: NotRequired[float]  # confidence, 0 to 1
    evidence: NotRequired[list[Any]]  # [time, source, place, text]
    moreEvidence: NotRequired[int]  # how much more there is
    assignor: NotRequired[str]
    leader: NotRequired[str]
    cooperative: NotRequired[bool]
    took: NotRequired[float]  # duration
    joining: NotRequired[float]
    syncing: NotRequired[float]
    last: NotRequired[str]  # client or member that the others waited for
    lastHost: NotRequired[str]
    late: NotRequired[float]  # how long
    how: NotRequired[str]  # what was with it: `process died` ...
    before: NotRequired[int]  # members before it
    after: NotRequired[int]  # members after it
    moved: NotRequired[int]
    needless: NotRequired[int]  # moves that balance did not require
    paused: NotRequired[float]
    removed: NotRequired[list[Any]]  # [name, host, why]
    moreRemoved: NotRequired[int]  # how many more there are


class FindingKeys(TypedDict):
    """A row of `Finding`: ``finding`` in the scripts."""

    detector: str
    severity: str
    start: float
    end: float
    text: str
    alike: str  # what the other findings of its card are about
    advice: str
    value: float | None  # None: infinite
    threshold: float | None  # None: infinite
    rebalances: list[int]
    more: int  # how many more there are


class GroupKeys(TypedDict):
    """A group: ``group`` in the scripts."""

    id: str
    origin: str  # what shows it, and the sources that its evidence names, in words
    severity: str  # of its headline
    headline: str  # what matters most
    sentence: str  # all that happened
    first: float  # its first moment, in milliseconds since 1970
    span: float  # from its first to its last moment
    period: str  # from its first to its last moment, as dates and times
    total: int  # number of rebalances; the page may have fewer
    rebalancing: float  # time in which any rebalance went on
    paused: float | None  # partition time without an owner; None: not known
    moved: int
    needless: int
    unfinished: int  # rebalances that are open or were interrupted
    members: int  # number of member ids
    clients: int  # number of clients; the page may have fewer lanes
    worst: int | None  # number of the rebalance that cost most
    causes: list[list[Any]]  # [cause, count, duration, paused], most frequent first
    culprits: list[list[Any]]  # [name, host, set off, was last, latest by, removed], worst first
    rebalances: list[RebalanceKeys]
    lanes: list[LaneKeys]  # where there are many, those with trouble first
    folded: int  # how many of the last lanes have no trouble and are shown only on demand
    outages: list[list[Any]]  # [start, end, kind, text], in order of time
    bars: list[list[float]]  # per lane: start, end, partitions, index into `held` or -1; repeated
    held: list[str]  # texts that list partitions
    lag: list[list[float]]  # [time, records that were not read yet]
    behind: str  # the lag at the end, in a sentence
    pauses: list[list[float]]  # [time, partitions without an owner], where it changes
    commits: list[list[float]]  # [time, records, commits, refused], per interval
    interval: int  # its length in seconds
    findings: list[FindingKeys]
    blind: list[str]  # sentences on what the source does not show
    cut: list[str]  # sentences on what the page leaves out


class PageKeys(TypedDict):
    """The whole page: ``page`` in the scripts."""

    title: str
    source: str
    groups: list[GroupKeys]
    causes: dict[str, CauseKeys]
    other: str  # colour of causes that are not in `causes`
    cut: list[str]  # sentences on what the page leaves out
    losses: list[LossKeys]  # the first ones
    lost: TotalKeys


class GroupClock:
    """Times of one group, in milliseconds after its first moment.

    :ivar first: its first moment, in nanoseconds
    :ivar last: its last moment, in nanoseconds
    """

    def __init__(self, history: GroupHistory) -> None:
        self.first, self.last = history.group.first_ns, history.group.last_ns

    def ms(self, ns: int) -> float:
        """A moment, rounded to microseconds."""
        value = (ns - self.first) / 1e6
        return int(value) if value == int(value) else round(value, 3)

    def end(self, ns: int | None) -> float:
        """The end of an interval; for None the last moment of the group."""
        return self.ms(self.last if ns is None else ns)


OTHER: Final = "#7d8590"  # of what is no `Cause`
