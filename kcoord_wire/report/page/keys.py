"""The JSON that `data` writes into the page and the scripts read: every object, every key.

Laws:

* Keys are short because a page holds thousands of rows. Each key is declared here, written by `data` or `lanes`, and
  read by a script.
* Times are milliseconds after the group's first moment, durations milliseconds. Strings are printable and bounded.
"""

from typing import Any, NotRequired, TypedDict

__all__ = ["CauseKeys", "FindingKeys", "GroupKeys", "LaneKeys", "LossKeys", "PageKeys", "RebalanceKeys", "TotalKeys"]


class CauseKeys(TypedDict):
    """A cause: its colour in charts and tables, and a sentence about it."""

    colour: str
    about: str


class LossKeys(TypedDict):
    """A row of `kcoord_wire.forensics.model.Loss`; `at` is its position."""

    source: str
    at: int
    what: str
    bytes: int
    count: int


class TotalKeys(TypedDict):
    """The number of losses, and the sums of their counts and bytes."""

    places: int
    count: int
    bytes: int


class LaneKeys(TypedDict):
    """A client: ``lane`` in the scripts.

    :ivar lives: ``[start, end, why it left, member id]``, in order of time
    """

    label: str
    host: str
    about: str
    lives: list[list[Any]]


class RebalanceKeys(TypedDict):
    """A row of `kcoord_wire.forensics.model.Rebalance`: ``row`` in the scripts. Unknown and empty values have no key.

    :ivar n: its number
    :ivar gen: its generation
    :ivar iso: when it started, as a date and time
    :ivar who: client, or member, that set it off; `member` is its member id
    :ivar sure: confidence in the cause, 0 to 1
    :ivar evidence: ``[time, source, seq, text]``
    :ivar last: who joined last
    :ivar late: how long after the one before it
    :ivar before: members before it
    :ivar after: members after it
    :ivar removed: ``[name, host, why]``
    :ivar moreRemoved: how many more were removed
    :ivar moreEvidence: how much more evidence there is
    """

    n: int
    start: float
    end: float
    iso: str
    cause: str
    gen: NotRequired[int]
    joined: NotRequired[float]
    outcome: NotRequired[str]
    who: NotRequired[str]
    member: NotRequired[str]
    host: NotRequired[str]
    reason: NotRequired[str]
    detail: NotRequired[str]
    sure: NotRequired[float]
    evidence: NotRequired[list[Any]]
    assignor: NotRequired[str]
    leader: NotRequired[str]
    cooperative: NotRequired[bool]
    took: NotRequired[float]
    joining: NotRequired[float]
    syncing: NotRequired[float]
    last: NotRequired[str]
    lastHost: NotRequired[str]
    late: NotRequired[float]
    before: NotRequired[int]
    after: NotRequired[int]
    moved: NotRequired[int]
    needless: NotRequired[int]
    paused: NotRequired[float]
    removed: NotRequired[list[Any]]
    moreRemoved: NotRequired[int]
    moreEvidence: NotRequired[int]


class FindingKeys(TypedDict):
    """A row of `kcoord_wire.forensics.model.Finding`: ``finding`` in the scripts.

    :ivar value: what was measured; None: without end
    :ivar threshold: the value from which the detector reports; None: without end
    :ivar rebalances: numbers of the first rebalances it is about; `more` is the number of the others
    """

    detector: str
    severity: str
    start: float
    end: float
    text: str
    advice: str
    value: float | None
    threshold: float | None
    rebalances: list[int]
    more: int


class GroupKeys(TypedDict):
    """A group: ``group`` in the scripts.

    :ivar first: its first moment, in milliseconds since 1970
    :ivar span: milliseconds from its first to its last moment; `begins` and `ends` are these as dates
    :ivar total: number of rebalances, of which `rebalances` may have fewer
    :ivar rebalancing: time in which any rebalance went on
    :ivar paused: partition time without an owner
    :ivar needless: moved partitions that could have stayed
    :ivar unfinished: rebalances that are open or were interrupted
    :ivar members: number of member ids
    :ivar clients: number of clients, of which `lanes` may have fewer
    :ivar worst: number of the longest rebalance
    :ivar causes: ``[cause, count, duration, paused]``, most frequent first
    :ivar culprits: ``[name, host, set off, was last, latest by, removed]``, worst first
    :ivar bars: for each lane ``start, end, partitions, which`` repeated; `which` is an index into `held`, or -1
    :ivar held: texts that list partitions
    :ivar pauses: ``[time, partitions without an owner]`` where the number changes
    :ivar commits: ``[time, records, commits, refused]`` per minute
    :ivar blind: sentences on what the source cannot tell
    :ivar cut: sentences on what the page leaves out of this group
    """

    id: str
    origin: str
    protocol: str
    severity: str
    sentence: str
    first: float
    span: float
    begins: str
    ends: str
    total: int
    rebalancing: float
    paused: float
    moved: int
    needless: int
    unfinished: int
    members: int
    clients: int
    worst: int | None
    causes: list[list[Any]]
    culprits: list[list[Any]]
    rebalances: list[RebalanceKeys]
    lanes: list[LaneKeys]
    bars: list[list[float]]
    held: list[str]
    pauses: list[list[float]]
    commits: list[list[float]]
    findings: list[FindingKeys]
    blind: list[str]
    cut: list[str]


class PageKeys(TypedDict):
    """The whole page: ``page`` in the scripts.

    :ivar causes: by name of the cause
    :ivar other: colour of causes that are not in `causes`
    :ivar cut: sentences on what the page leaves out
    :ivar lost: sums of all losses, of which `losses` has the first
    """

    title: str
    source: str
    groups: list[GroupKeys]
    causes: dict[str, CauseKeys]
    other: str
    cut: list[str]
    losses: list[LossKeys]
    lost: TotalKeys
