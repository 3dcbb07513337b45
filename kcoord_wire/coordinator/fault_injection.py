"""Fault injection: rules that delay, drop, duplicate, refuse or disconnect requests and responses.

A script is a TOML file of ``[[fault]]`` tables, or a list of `Fault` in Python; a table's keys are the fields of
`Fault`::

    [[fault]]                   # of the heartbeats of members called worker-7..., the third to the fifth are lost
    api = "Heartbeat"
    action = "drop"
    member = "worker-7"
    after = 2
    count = 3

    [[fault]]                   # one response to a commit in ten is 5 s late
    api = "OffsetCommit"
    on = "response"
    action = "delay"
    delay_ms = 5000
    every = 10

To add an action: a row of `ACTIONS`, its name in `ActionName`, and a field of `Fault` if it has a parameter. The row is
read by help, page, control port and simulations.

Laws:

* There is no clock and no randomness: the same requests in the same order meet the same faults.
* All matching rules apply, their actions by `Action.rank`. Delays and copies add up, the first error wins.
* A rule that is used up costs nothing, and an api without rules costs one look-up.
* The server and the simulated network each derive a class from `FaultedExchange`, so that a script does the same to
  both.
* A response that replaces an answer (`error`) meets no further fault.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from kcoord_wire.coordinator.core.apis import api_of, refusal
from kcoord_wire.coordinator.core.named import NameOf, topics_of, transactions_of
from kcoord_wire.kernel import settings
from kcoord_wire.kernel.settings import SettingsError, declarations, read_rules, setting, suggestion
from kcoord_wire.protocol.api_keys import API_NAMES
from kcoord_wire.protocol.error_codes import ErrorCode

__tracebackhide__ = settings.__tracebackhide__

API_KEYS = {name: key for key, name in API_NAMES.items()}
_ALL: Final = 1 << 31  # above every version, and every number of a match
DIRECTIONS = ("request", "response")

ActionName = Literal["delay", "drop", "duplicate", "error", "disconnect"]
GoOn = Callable[[int], None]
"""Passes a request or response on, so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What a fault can do.

    :ivar name: as `Fault.action`
    :ivar rank: of several actions the one with the lowest comes first, and decides whether the others do
    :ivar effect: does it, with the exchange, the rules that strike with this action, and what passes the request or
        response on; that is given the number of times
    :ivar on_request: what it does to a request, for people
    :ivar on_response: likewise to a response
    :ivar parameter: the field of `Fault` that goes with it; empty for none
    :ivar drawn: values of that field in the scripts of simulations
    """

    name: ActionName
    rank: int
    effect: Callable[[FaultedExchange, Sequence[Fault], GoOn, int], None]
    on_request: str
    on_response: str
    parameter: str = ""
    drawn: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule: an action of `ACTIONS`, which requests or responses it is for, and when it strikes.

    An action on a response happens after the coordinator has handled the request. Which rules a response meets is read
    from its request.

    ::

        Fault("drop", api="Heartbeat", member="worker-7", after=2, count=3)
        Fault("delay", on="response", api="OffsetCommit", delay_ms=5000, every=10)
        Fault("error", api="Fetch", topic="orders", partition=3, nth="2-4", error="NOT_LEADER_OR_FOLLOWER")

    `kcoord serve --help` and docs/coordinator.md say what each field is for.

    :raises SettingsError: the fields contradict each other or name what does not exist
    """

    action: ActionName = setting(MISSING, "what happens")  # noqa: RUF009
    on: Literal["request", "response"] = setting("request", "to the request, or to its response")
    api: str | None = setting(None, "only this api, such as JoinGroup")
    group: str | None = setting(None, "only requests that name this group")
    member: str | None = setting(
        None, "only requests of a member whose id or client id begins with this, or whose instance id it is"
    )
    client_id: str | None = setting(None, "only requests with this client id in their header")
    versions: range | str | int | None = setting(None, "only these versions of the api, as 3, 0-5 or 6+")
    after: int = setting(0, "the number of matches to let through first")
    every: int = setting(1, "after those, only every n-th match", least=1)
    count: int | None = setting(None, "at most so many times", least=1)
    from_ms: int = setting(0, "only from this time on, in ms since the coordinator started")
    until_ms: int | None = setting(None, "only before this time", least=1)
    delay_ms: int = setting(0, "for delay: how long")
    error: ErrorCode | str | int | None = setting(None, "for error: its name or number")  # noqa: RUF009
    topic: str | None = setting(None, "only requests that name this topic, or have its id")
    partition: int | None = setting(None, "only requests that name this partition of a topic")
    transactional_id: str | None = setting(None, "only requests that name this transactional id")
    nth: range | str | int | None = setting(
        None, "only these matches, counted from 1, as 3, 2-4 or 6+; without after, every and count"
    )

    def __post_init__(self) -> None:
        for key in _TEXTS:
            value = getattr(self, key)
            if not isinstance(value, str) and (value is not None or key in ("action", "on")):
                raise SettingsError(key, f"must be text, not {value!r}")
        _one_of("action", self.action, ACTIONS)
        _one_of("on", self.on, DIRECTIONS)
        if self.api is not None:
            _one_of("api", self.api, API_KEYS)
        for key, least in _NUMBERS.items():
            value = getattr(self, key)
            if value is None and DEFAULTS[key] is None:
                continue
            if type(value) is not int or value < least:
                raise SettingsError(key, f"must be a whole number from {least} up, not {value!r}")
        if self.until_ms is not None and self.until_ms <= self.from_ms:
            raise SettingsError("until_ms", "must be after from_ms")
        self._check_parameters()
        object.__setattr__(self, "versions", _parse_range("versions", self.versions))
        object.__setattr__(self, "nth", _parse_range("nth", self.nth))
        object.__setattr__(self, "error", _parse_error(self.error))

    def _check_parameters(self) -> None:
        for action in ACTIONS.values():
            key = action.parameter
            if key and (action.name == self.action) != (getattr(self, key) != DEFAULTS[key]):
                raise SettingsError(key, f"goes with action = {action.name!r}, and with no other")
        if self.nth is not None:
            for key in ("after", "every", "count"):
                if getattr(self, key) != DEFAULTS[key]:
                    raise SettingsError("nth", f"cannot be given together with {key}")

    def matches(self, exchange: FaultedExchange) -> bool:
        """Return whether the rule is for the request of an exchange, whatever its api, the time and the counts."""
        message = exchange.message
        return (
            (self.client_id is None or self.client_id == exchange.client_id)
            and (self.versions is None or exchange.version in self.versions)  # type: ignore[operator]  # parsed
            and (self.group is None or self.group in _groups_of(message))
            and (self.member is None or _is_member(message, exchange.client_id, self.member))
            and (self.transactional_id is None or self.transactional_id in transactions_of(message))
            and ((self.topic is None and self.partition is None) or self._names(message, exchange.name_of))
        )

    def _names(self, message: Any, name_of: NameOf) -> bool:
        """Return whether a request names the topic and the partition."""
        return any(
            (self.topic is None or self.topic == name) and (self.partition is None or self.partition in partitions)
            for name, partitions in topics_of(message, name_of)
        )


DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({each.name: each.default for each in fields(Fault)})
"""The fields of `Fault` with their defaults."""

_TEXTS: Final = ("action", "on", "api", "group", "member", "client_id", "topic", "transactional_id")
_NUMBERS: Final = {
    key: declarations(Fault)[key].least
    for key in ("after", "every", "count", "from_ms", "until_ms", "delay_ms", "partition")
}


# ---- the actions


def _delay(exchange: FaultedExchange, faults: Sequence[Fault], go_on: GoOn, copies: int) -> None:
    exchange.later(sum(fault.delay_ms for fault in faults), partial(go_on, copies))


def _disconnect(exchange: FaultedExchange, faults: Sequence[Fault], go_on: GoOn, copies: int) -> None:
    exchange.disconnect()


def _drop(exchange: FaultedExchange, faults: Sequence[Fault], go_on: GoOn, copies: int) -> None:
    exchange.answer(None, 0)


def _refuse(exchange: FaultedExchange, faults: Sequence[Fault], go_on: GoOn, copies: int) -> None:
    error: Any = faults[0].error
    exchange.answer(refusal(exchange.message, exchange.version, error), 1)


def _duplicate(exchange: FaultedExchange, faults: Sequence[Fault], go_on: GoOn, copies: int) -> None:
    go_on(copies + len(faults))


_ACTIONS: Final = (  # their order is part of what the seeds of simulations mean
    Action(
        name="delay",
        rank=1,
        effect=_delay,
        on_request="the coordinator sees it later",
        on_response="it leaves later",
        parameter="delay_ms",
        drawn=(50, 1_000, 7_000),
    ),
    Action(name="drop", rank=3, effect=_drop, on_request="never seen, never answered", on_response="never sent"),
    Action(
        name="duplicate", rank=5, effect=_duplicate, on_request="seen twice, answered once", on_response="sent twice"
    ),
    Action(
        name="error",
        rank=4,
        effect=_refuse,
        on_request="answered with the error, never seen",
        on_response="replaced by the error",
        parameter="error",
        drawn=("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
    ),
    Action(
        name="disconnect",
        rank=2,
        effect=_disconnect,
        on_request="the connection is closed, not seen",
        on_response="the connection is closed instead",
    ),
)
ACTIONS: Final[Mapping[str, Action]] = MappingProxyType({action.name: action for action in _ACTIONS})
"""What faults can do, by name."""

_LAST_FIRST: Final = sorted(_ACTIONS, key=lambda action: -action.rank)


def help_lines() -> list[str]:
    """Return what a fault can do and be limited to, as lines for people."""
    keys = declarations(Fault)
    rows = [(f"{name}", f"a request: {row.on_request}; a response: {row.on_response}") for name, row in ACTIONS.items()]
    lines = ["action:", *_columns(rows, "  ")]
    return [*lines, "keys:", *_columns([(key, declared.about) for key, declared in keys.items()], "  ")]


def _columns(rows: Sequence[tuple[str, str]], indent: str) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{indent}{name:<{width}}  {about}" for name, about in rows]


class Strike(NamedTuple):
    """A request, or a response, that faults have struck.

    :ivar at: when, in ms since the epoch
    :ivar on: ``request`` or ``response``
    :ivar api: its name
    :ivar version: the request's
    :ivar client_id: from the request's header
    :ivar groups: those that the request names
    :ivar faults: those that have struck
    """

    at: int
    on: str
    api: str
    version: int
    client_id: str
    groups: tuple[str, ...]
    faults: tuple[Fault, ...]


class Tally(NamedTuple):
    """How often a rule has matched, and how often it has struck.

    :ivar fault: the rule
    :ivar matches: requests or responses that it was for
    :ivar hits: those that it has struck
    :ivar number: names the rule among those of its `Faults`; never used twice
    """

    fault: Fault
    matches: int
    hits: int
    number: int


class Faults:
    """A set of rules and their counts. It is false when no rule can strike any more.

    :param rules: the first rules; rules can be added and removed at any time
    :raises TypeError: one of them is not a `Fault`
    """

    def __init__(self, rules: Iterable[Fault] = ()) -> None:
        self._numbers = itertools.count(1)
        self._rules = [_Rule(fault, next(self._numbers)) for fault in rules]
        self._index: dict[tuple[str, int], list[_Rule]] = {}
        self._reindex()

    @classmethod
    def from_file(cls, path: Path | str) -> Faults:
        """Read the rules of a TOML file.

        :raises SettingsError: it is not TOML, or a rule is invalid
        :raises OSError: it cannot be read
        """
        rules = []
        for where, table in read_rules(path, {"fault": DEFAULTS})["fault"]:
            if "action" not in table:
                raise SettingsError(f"{where}.action", f"is missing: one of {', '.join(ACTIONS)}")
            try:
                rules.append(Fault(**table))
            except SettingsError as error:
                raise SettingsError(f"{where}.{error.where}", error.what) from None
        return cls(rules)

    def __bool__(self) -> bool:
        return bool(self._index)

    def add(self, *rules: Fault) -> None:
        """Add rules. TypeError: one is not a `Fault`."""
        self._rules += [_Rule(fault, next(self._numbers)) for fault in rules]
        self._reindex()

    def remove(self, rule: Fault) -> None:
        """Remove a rule: this object, else one that is equal. ValueError: there is none like it."""
        alike = [place for place, each in enumerate(self._rules) if each.fault == rule]
        place = next((place for place in alike if self._rules[place].fault is rule), next(iter(alike), None))
        if place is None:
            raise ValueError(f"no such rule: {rule}")
        del self._rules[place]
        self._reindex()

    def remove_number(self, number: int) -> None:
        """Remove the rule of this number. KeyError: there is none."""
        left = [rule for rule in self._rules if rule.number != number]
        if len(left) == len(self._rules):
            raise KeyError(f"no fault {number}")
        self._rules = left
        self._reindex()

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()
        self._reindex()

    def tallies(self) -> list[Tally]:
        """Return what each rule has done so far, in the order of the rules."""
        return [Tally(rule.fault, rule.matches, rule.hits, rule.number) for rule in self._rules]

    def decide(self, on: str, exchange: FaultedExchange, elapsed_ms: int) -> tuple[Fault, ...]:
        """Return the rules that strike a request, or the response to it, and count a match for each that matches.

        :param on: ``request`` or ``response``
        :param elapsed_ms: since the coordinator started; never less than in an earlier call
        """
        rules = self._index.get((on, exchange.api_key))
        if rules is None:
            return ()
        striking = tuple(rule.fault for rule in rules if rule.strikes(exchange, elapsed_ms))
        if any(rule.is_over(elapsed_ms) for rule in rules):
            self._reindex(elapsed_ms)
        return striking

    def _reindex(self, elapsed_ms: int = 0) -> None:
        self._index.clear()
        for rule in self._rules:
            if not rule.is_over(elapsed_ms):
                for key in API_NAMES if rule.fault.api is None else (API_KEYS[rule.fault.api],):
                    self._index.setdefault((rule.fault.on, key), []).append(rule)


class _Rule:
    """A fault with its counts."""

    __slots__ = ("fault", "hits", "matches", "number")

    def __init__(self, fault: Fault, number: int) -> None:
        if not isinstance(fault, Fault):
            raise TypeError(f"must be a Fault, not {fault!r}")
        self.fault, self.matches, self.hits, self.number = fault, 0, 0, number

    def strikes(self, exchange: FaultedExchange, elapsed_ms: int) -> bool:
        fault = self.fault
        if elapsed_ms < fault.from_ms or self.is_over(elapsed_ms) or not fault.matches(exchange):
            return False
        self.matches += 1
        behind = self.matches - fault.after
        numbers: Any = fault.nth  # parsed
        if behind <= 0 or behind % fault.every or (numbers is not None and self.matches not in numbers):
            return False
        self.hits += 1
        return True

    def is_over(self, elapsed_ms: int) -> bool:
        fault = self.fault
        numbers: Any = fault.nth
        return (
            self.hits == fault.count
            or (fault.until_ms is not None and elapsed_ms >= fault.until_ms)
            or (numbers is not None and self.matches >= numbers.stop - 1)
        )


# ---- groups and members of a request


def _groups_of(message: Any) -> Iterable[str]:
    api = api_of(message)
    return () if api is None else api.groups_of(message)


def _is_member(message: Any, client_id: str, wanted: str) -> bool:
    if client_id.startswith(wanted):
        return True
    members = getattr(message, "members", None)
    for each in [message, *(members if isinstance(members, list) else ())]:
        member_id, instance_id = getattr(each, "member_id", None), getattr(each, "group_instance_id", None)
        if instance_id == wanted or (isinstance(member_id, str) and member_id.startswith(wanted)):
            return True
    return False


# ---- reading


def _one_of(key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise SettingsError(key, f"{value!r} is unknown; {suggestion(value, known)}")


def _parse_range(key: str, numbers: range | str | int | None) -> range | None:
    if numbers is None or isinstance(numbers, range):
        return numbers
    found = re.fullmatch(r"(\d+)(?:-(\d+)|(\+))?", "" if isinstance(numbers, bool) else str(numbers))
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise SettingsError(key, f"must be written 3, 0-5 or 6+, not {numbers!r}")
    return range(int(found[1]), _ALL if found[3] else int(found[2] or found[1]) + 1)


def _parse_error(error: ErrorCode | str | int | None) -> ErrorCode | None:
    if error is None:
        return None
    try:
        code = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
    except KeyError:
        raise SettingsError(
            "error", f"{error!r} is unknown; {suggestion(str(error), list(ErrorCode.__members__))}"
        ) from None
    except ValueError:
        raise SettingsError("error", f"{error!r} is not an error code") from None
    if code is ErrorCode.NONE:
        raise SettingsError("error", "NONE is not an error")
    return code


class FaultedExchange(ABC):
    """A request that faults may meet, and the response to it.

    The host calls `receive` when the request has arrived, and `respond` when the coordinator has answered it. The
    exchange calls the host's methods below in turn.

    :ivar api_key: the request's
    :ivar message: the decoded request
    :ivar version: the request's
    :ivar client_id: from the request's header; empty for null
    :ivar name_of: the name of the topic with an id
    """

    __slots__ = ("api_key", "client_id", "message", "name_of", "version")

    def __init__(self, api_key: int, message: Any, version: int, client_id: str, name_of: NameOf) -> None:
        self.api_key: int = api_key
        self.message: Any = message
        self.version: int = version
        self.client_id: str = client_id
        self.name_of: NameOf = name_of

    def strike(self, at: int, on: str, faults: tuple[Fault, ...]) -> Strike:
        """Return an account of what has struck it."""
        groups = tuple(_groups_of(self.message))
        return Strike(at, on, API_NAMES[self.api_key], self.version, self.client_id, groups, faults)

    def receive(self) -> None:
        """Pass the request on to the coordinator, unless a fault prevents that."""
        self._meet("request", self.submit)

    def respond(self, response: Any) -> None:
        """Pass the response on to the client, unless a fault prevents that."""
        self._meet("response", partial(self.answer, response))

    def _meet(self, on: str, go_on: GoOn) -> None:
        striking = self.decide(on)
        if striking:
            for action in _LAST_FIRST:
                faults = [fault for fault in striking if fault.action == action.name]
                if faults:
                    go_on = partial(action.effect, self, faults, go_on)
        go_on(1)

    # ---- what the host does

    @abstractmethod
    def decide(self, on: str) -> tuple[Fault, ...]:
        """Return the faults that strike the request, or the response.

        :param on: ``request`` or ``response``
        """

    @abstractmethod
    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        """Call `step` after the delay, if the connection still exists. No other request of it is handled until then."""

    @abstractmethod
    def submit(self, copies: int) -> None:
        """Give the coordinator the request `copies` times, of which only the first is answered."""

    @abstractmethod
    def answer(self, response: Any, copies: int) -> None:
        """Send the response `copies` times; 0 ends the exchange without an answer."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection instead."""
