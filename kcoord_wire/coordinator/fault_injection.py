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

To add an action: `ACTIONS` and `Fault.action`, a field of `Injection` that `Faults.decide` sets, and what
`FaultedExchange` does then.

Laws:

* There is no clock and no randomness: the same requests in the same order meet the same faults.
* All matching rules apply. Delays and copies add up, the first error wins. Precedence after the delay: disconnect,
  drop, error, copies.
* A rule that is used up costs nothing, and an api without rules costs one look-up.
* The server and the simulated network each derive a class from `FaultedExchange`, so that a script does the same to
  both.
* A response that replaces an answer (`error`) meets no further fault.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kcoord_wire.coordinator.core.apis import api_of, refusal
from kcoord_wire.kernel.settings import SettingsError, read_rules, suggestion
from kcoord_wire.protocol.api_keys import API_NAMES
from kcoord_wire.protocol.error_codes import ErrorCode

API_KEYS = {name: key for key, name in API_NAMES.items()}
ACTIONS = ("delay", "drop", "duplicate", "error", "disconnect")
DIRECTIONS = ("request", "response")


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule: an action, which requests or responses it is for, and when it strikes.

    On a request, ``delay`` lets the coordinator see it later; with ``drop`` the request is neither seen nor answered;
    with ``duplicate`` it is seen twice and answered once; with ``error`` it is answered with the error and not seen;
    with ``disconnect`` the connection is closed instead. On a response all of that happens after the coordinator has
    handled the request: the response is late, lost, sent twice, replaced by the error, or the connection is closed.

    ::

        Fault("drop", api="Heartbeat", member="worker-7", after=2, count=3)
        Fault("delay", on="response", api="OffsetCommit", delay_ms=5000, every=10)

    :ivar action: ``delay``, ``drop``, ``duplicate``, ``error`` or ``disconnect``
    :ivar on: ``request`` or ``response``
    :ivar api: an api's name as in `kcoord_wire.protocol.api_keys`, such as ``JoinGroup``; None for every api
    :ivar group: only requests that name this group
    :ivar member: only requests of a member whose id or client id begins with this, or whose instance id it is
    :ivar client_id: only requests with this client id in their header
    :ivar versions: only these versions: a range, or text such as ``3``, ``0-5`` or ``6+``
    :ivar after: the number of matches to let through first
    :ivar every: after those, strike only every n-th match
    :ivar count: strike at most this often; None for no limit
    :ivar from_ms: strike only from this time on, in ms since the coordinator started
    :ivar until_ms: strike only before this time; None for no limit
    :ivar delay_ms: for ``delay``: its length
    :ivar error: for ``error``: an `ErrorCode`, its name, or its number
    :raises SettingsError: the fields contradict each other or name what does not exist
    """

    action: Literal["delay", "drop", "duplicate", "error", "disconnect"]
    on: Literal["request", "response"] = "request"
    api: str | None = None
    group: str | None = None
    member: str | None = None
    client_id: str | None = None
    versions: range | str | int | None = None
    after: int = 0
    every: int = 1
    count: int | None = None
    from_ms: int = 0
    until_ms: int | None = None
    delay_ms: int = 0
    error: ErrorCode | str | int | None = None

    def __post_init__(self) -> None:
        for key in ("action", "on", "api", "group", "member", "client_id"):
            value = getattr(self, key)
            if not isinstance(value, str) and (value is not None or key in ("action", "on")):
                raise SettingsError(key, f"must be text, not {value!r}")
        _one_of("action", self.action, ACTIONS)
        _one_of("on", self.on, DIRECTIONS)
        if self.api is not None:
            _one_of("api", self.api, API_KEYS)
        for key, least in (("after", 0), ("every", 1), ("count", 1), ("from_ms", 0), ("until_ms", 1), ("delay_ms", 0)):
            value = getattr(self, key)
            if value is None and key in ("count", "until_ms"):
                continue
            if type(value) is not int or value < least:
                raise SettingsError(key, f"must be a whole number from {least} up, not {value!r}")
        if self.until_ms is not None and self.until_ms <= self.from_ms:
            raise SettingsError("until_ms", "must be after from_ms")
        if (self.action == "delay") != bool(self.delay_ms):
            raise SettingsError("delay_ms", "goes with action = 'delay', and with no other")
        if (self.action == "error") != (self.error is not None):
            raise SettingsError("error", "goes with action = 'error', and with no other")
        object.__setattr__(self, "versions", _parse_versions(self.versions))
        object.__setattr__(self, "error", _parse_error(self.error))

    def matches(self, message: Any, version: int, client_id: str) -> bool:
        """Return whether the rule is for this request of its api, whatever the time and the counts."""
        return (
            (self.client_id is None or self.client_id == client_id)
            and (self.versions is None or version in self.versions)  # type: ignore[operator]  # parsed
            and (self.group is None or self.group in _groups_of(message))
            and (self.member is None or _is_member(message, client_id, self.member))
        )


@dataclass(frozen=True, slots=True)
class Injection:
    """What all matching rules together do to one request or response.

    :ivar delay_ms: how long to wait first
    :ivar drop: whether to discard it
    :ivar copies: how many times to deliver it
    :ivar error: what to answer instead; None for no error
    :ivar disconnect: whether to close the connection
    """

    delay_ms: int = 0
    drop: bool = False
    copies: int = 1
    error: ErrorCode | None = None
    disconnect: bool = False

    @property
    def actions(self) -> list[str]:
        """The names of the actions that strike."""
        happens = {
            "delay": self.delay_ms > 0,
            "drop": self.drop,
            "duplicate": self.copies > 1,
            "error": self.error is not None,
            "disconnect": self.disconnect,
        }
        return [action for action, does in happens.items() if does]


CLEAN = Injection()


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
        for where, table in read_rules(path, {"fault": [field.name for field in fields(Fault)]})["fault"]:
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

    def decide(self, on: str, api_key: int, message: Any, version: int, client_id: str, elapsed_ms: int) -> Injection:
        """Return what happens to a request, or to the response to it, and count a match for each rule that matches.

        :param on: ``request`` or ``response``
        :param message: the request, in either direction: groups and members are read from it
        :param elapsed_ms: since the coordinator started; never less than in an earlier call
        """
        rules = self._index.get((on, api_key))
        if rules is None:
            return CLEAN
        striking = [rule.fault for rule in rules if rule.strikes(message, version, client_id, elapsed_ms)]
        if any(rule.is_over(elapsed_ms) for rule in rules):
            self._reindex(elapsed_ms)
        if not striking:
            return CLEAN
        actions = [fault.action for fault in striking]
        errors: Iterator[Any] = (fault.error for fault in striking if fault.error is not None)
        return Injection(
            delay_ms=sum(fault.delay_ms for fault in striking),
            drop="drop" in actions,
            copies=1 + actions.count("duplicate"),
            error=next(errors, None),
            disconnect="disconnect" in actions,
        )

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

    def strikes(self, message: Any, version: int, client_id: str, elapsed_ms: int) -> bool:
        fault = self.fault
        if elapsed_ms < fault.from_ms or self.is_over(elapsed_ms) or not fault.matches(message, version, client_id):
            return False
        self.matches += 1
        behind = self.matches - fault.after
        if behind <= 0 or behind % fault.every:
            return False
        self.hits += 1
        return True

    def is_over(self, elapsed_ms: int) -> bool:
        fault = self.fault
        return self.hits == fault.count or (fault.until_ms is not None and elapsed_ms >= fault.until_ms)


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


def _parse_versions(versions: range | str | int | None) -> range | None:
    if versions is None or isinstance(versions, range):
        return versions
    found = re.fullmatch(r"(\d+)(?:-(\d+)|(\+))?", "" if isinstance(versions, bool) else str(versions))
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise SettingsError("versions", f"must be written 3, 0-5 or 6+, not {versions!r}")
    return range(int(found[1]), 1 << 15 if found[3] else int(found[2] or found[1]) + 1)


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
    """

    __slots__ = ("api_key", "client_id", "message", "version")

    def __init__(self, api_key: int, message: Any, version: int, client_id: str) -> None:
        self.api_key = api_key
        self.message = message
        self.version = version
        self.client_id = client_id

    def receive(self) -> None:
        """Pass the request on to the coordinator, unless a fault prevents that."""
        self._meet("request", self.submit)

    def respond(self, response: Any) -> None:
        """Pass the response on to the client, unless a fault prevents that."""
        self._meet("response", partial(self.answer, response))

    def _meet(self, on: str, go_on: Callable[[int], None]) -> None:
        injection = self.decide(on)
        if injection is CLEAN:
            go_on(1)
        elif injection.delay_ms:
            self.later(injection.delay_ms, partial(self._inject, injection, go_on))
        else:
            self._inject(injection, go_on)

    def _inject(self, injection: Injection, go_on: Callable[[int], None]) -> None:
        if injection.disconnect:
            self.disconnect()
        elif injection.drop:
            self.answer(None, 0)
        elif injection.error is not None:
            self.answer(refusal(self.message, self.version, injection.error), 1)
        else:
            go_on(injection.copies)

    # ---- what the host does

    @abstractmethod
    def decide(self, on: str) -> Injection:
        """Return what the faults in force do to the request, or to the response.

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
