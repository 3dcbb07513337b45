"""Client quotas: what clients set and describe of them (KIP-546), which is in force for whom, and what a rate asks for.

Laws:

* Functions of the quotas that there are: an answer, and what changes. Who keeps them is `coordinator.access`.
* What Kafka's controller refuses is refused with its code and text. Host names are not looked up: an ``ip`` is an
  address, or localhost.
* A quota in force is the most specific one for a user and client id; who has the same one shares its rate, on each
  broker, as Kafka's brokers count for themselves.
* A rate is what was counted in the last eleven windows of a second. Over the quota a client waits until it would be at
  the quota, if nothing were counted meanwhile.

Source: kafka `ClientQuotaControlManager.java`, `ClientQuotasImage.java` (describe), `ClientQuotaManager`
(DefaultQuotaCallback), `QuotaUtils.java`; kafka-clients `Rate.java`, `SampledStat.java`; KIP-13, KIP-55, KIP-219.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused, refused_in
from kcoord_wire.protocol.error_codes import ErrorCode

PRODUCE: Final = "producer_byte_rate"
FETCH: Final = "consumer_byte_rate"
MOST_QUOTAS: Final = 10_000
"""Entities with quotas."""

WINDOWS: Final = 11  # quota.window.num
WINDOW_MS: Final = 1_000  # quota.window.size.seconds
_MOST_RATES: Final = 10_000

_LONG, _INT = (1 << 63) - 1, (1 << 31) - 1
_OF_USERS: Final = {PRODUCE: _LONG, FETCH: _LONG, "request_percentage": None, "controller_mutation_rate": None}
_OF_ADDRESSES: Final = {"connection_creation_rate": _INT}
_TYPES: Final = ("client-id", "user", "ip")
_EXACT, _DEFAULT, _SPECIFIED = range(3)  # match types
_EPSILON: Final = 1e-6

Entity = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of `_TYPES`; the name is None for the default of that type."""

Quotas = Mapping[Entity, Mapping[str, float]]
"""Entity to key to value."""


def _entity(parts: Iterable[Any]) -> Entity:
    named = {part.entity_type: part.entity_name for part in parts}
    return tuple(sorted(named.items(), key=lambda each: _TYPES.index(each[0]) if each[0] in _TYPES else len(_TYPES)))


# ---- AlterClientQuotas


def alter_quotas(
    known: Quotas, request: m.AlterClientQuotasRequest
) -> tuple[m.AlterClientQuotasResponse, dict[Entity, dict[str, float]]]:
    """Return the answer to AlterClientQuotas, and the quotas that entities are to have instead of theirs."""
    answers: dict[Entity, m.AlterClientQuotasResponseEntryData] = {}
    changed: dict[Entity, dict[str, float]] = {}
    for entry in request.entries:
        entity = _entity(entry.entity)
        is_first = entity not in answers
        parts = [m.AlterClientQuotasResponseEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        answer = m.AlterClientQuotasResponseEntryData(error_message=None, entity=parts)
        answers[entity] = answer
        with refused_in(answer):
            if not is_first or len({op.key for op in entry.ops}) < len(entry.ops):
                shown = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
                raise _invalid(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")
            _check_entity(entity)
            own = dict(known.get(entity, {}))
            for op in entry.ops:
                _check_key(entity, op)
                own.pop(op.key, None)
                if not op.remove:
                    own[op.key] = op.value
            if own and entity not in known and len(known) + len(changed) >= MOST_QUOTAS:
                raise Refused(ErrorCode.POLICY_VIOLATION, f"{MOST_QUOTAS:,} entities have quotas.")
            changed[entity] = own
    return m.AlterClientQuotasResponse(entries=list(answers.values())), {} if request.validate_only else changed


def _check_entity(entity: Entity) -> None:
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in _TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    kinds = [kind for kind, _ in entity]
    if "ip" in kinds and len(kinds) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    address = dict(entity).get("ip")
    if address is not None and address != "localhost":
        try:
            ip_address(address)
        except ValueError:
            raise _invalid(f"{address} is not a valid IP or resolvable host.") from None


def _check_key(entity: Entity, op: Any) -> None:
    table: Mapping[str, int | None] = _OF_ADDRESSES if entity[0][0] == "ip" else _OF_USERS
    if op.key not in table:
        raise _invalid(f"Invalid configuration key {op.key}")
    if op.remove:
        return
    most = table[op.key]
    if not math.isfinite(op.value):
        raise _invalid(f"Quota {op.key} must be a finite number")
    if op.value <= 0:
        raise _invalid(f"Quota {op.key} must be greater than 0")
    if most is not None:
        if op.value > most:
            raise _invalid(f"Proposed value for {op.key} is too large for a{' LONG' if most == _LONG else 'n INT'}.")
        if abs(op.value - round(op.value)) > _EPSILON:
            raise _invalid(f"{op.key} cannot be a fractional value.")


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, text)


# ---- DescribeClientQuotas


def describe_quotas(known: Quotas, request: m.DescribeClientQuotasRequest) -> m.DescribeClientQuotasResponse:
    """Return the answer to DescribeClientQuotas."""
    answer = m.DescribeClientQuotasResponse(entries=None)
    with refused_in(answer):
        wanted = _read_filter(request.components)
        found = [each for each in known.items() if _matches(wanted, dict(each[0]), strict=request.strict)]
        named, valued = m.DescribeClientQuotasResponseEntityData, m.DescribeClientQuotasResponseValueData
        answer.entries = [
            m.DescribeClientQuotasResponseEntryData(
                entity=[named(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[valued(key=key, value=value) for key, value in own.items()],
            )
            for entity, own in found
        ]
    return answer


def _read_filter(components: Iterable[Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for part in components:
        if not part.entity_type:
            raise _invalid("Invalid empty entity type.")
        if part.entity_type in wanted:
            raise _invalid(f"Entity type {part.entity_type} cannot appear more than once in the filter.")
        if part.entity_type not in _TYPES:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {part.entity_type}")
        _check_match(part)
        wanted[part.entity_type] = part
    if "ip" in wanted and len(wanted) > 1:
        detail = "Invalid entity filter component combination. IP filter component should not be used with user or"
        raise _invalid(f"{detail} clientId filter component.")
    return wanted


def _check_match(part: Any) -> None:
    if part.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
        raise _invalid(f"Unknown match type {part.match_type}")
    if part.match_type == _EXACT and part.match is None:
        raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if part.match_type != _EXACT and part.match is not None:
        name = "DEFAULT" if part.match_type == _DEFAULT else "SPECIFIED"
        raise _invalid(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")


def _matches(wanted: Mapping[str, Any], entity: Mapping[str, str | None], *, strict: bool) -> bool:
    if (strict and len(entity) != len(wanted)) or not wanted.keys() <= entity.keys():
        return False
    return all(part.match_type == _SPECIFIED or part.match == entity[kind] for kind, part in wanted.items())


# ---- what is in force


class InForce(NamedTuple):
    """A quota.

    :ivar limit: its value
    :ivar whose: the user and client id whose rates count together; empty for any
    """

    limit: float
    whose: tuple[str, str]


def quota_of(known: Quotas, key: str, user: str, client_id: str) -> InForce | None:
    """Return the quota of a client; None if it has none.

    :param user: without ``User:``
    """
    of_user: tuple[str, str | None] = ("user", user)
    of_client: tuple[str, str | None] = ("client-id", client_id)
    any_user: tuple[str, str | None] = ("user", None)
    any_client: tuple[str, str | None] = ("client-id", None)
    for entity, whose in (
        ((of_client, of_user), (user, client_id)),
        ((any_client, of_user), (user, client_id)),
        ((of_user,), (user, "")),
        ((of_client, any_user), (user, client_id)),
        ((any_client, any_user), (user, client_id)),
        ((any_user,), (user, "")),
        ((of_client,), ("", client_id)),
        ((any_client,), ("", client_id)),
    ):
        value = known.get(entity, {}).get(key)
        if value is not None:
            return InForce(value, whose)
    return None


class Rate:
    """What was counted in the last windows."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: deque[list[float]] = deque()  # each its beginning and what was counted in it

    def record(self, value: float, now: int) -> None:
        """Count something."""
        if not self._windows or now - self._windows[-1][0] >= WINDOW_MS:
            self._windows.append([now, 0.0])
            if len(self._windows) > WINDOWS:
                self._windows.popleft()
        self._windows[-1][1] += value

    def excess_ms(self, limit: float, now: int) -> int:
        """Return how long nothing may be counted until this rate is a limit per second; 0 if it is not above it."""
        while self._windows and now - self._windows[0][0] >= WINDOWS * WINDOW_MS:
            self._windows.popleft()
        if not self._windows:
            return 0
        elapsed = now - int(self._windows[0][0])
        elapsed += max(WINDOWS - 1 - elapsed // WINDOW_MS, 0) * WINDOW_MS
        rate = sum(value for _, value in self._windows) * 1_000 / max(elapsed, 1)
        return max(round((rate - limit) / limit * max(elapsed, 1)), 0)


class Rates:
    """The rates of clients with quotas. The least recent of more than 10,000 are forgotten."""

    def __init__(self) -> None:
        self._rates: OrderedDict[tuple[object, ...], Rate] = OrderedDict()

    def of(self, *whose: object) -> Rate:
        """Return the rate of somebody."""
        rate = self._rates.get(whose)
        if rate is None:
            rate = self._rates[whose] = Rate()
            if len(self._rates) > _MOST_RATES:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(whose)
        return rate


class Metered(NamedTuple):
    """A client, as quotas see it.

    :ivar user: without ``User:``
    :ivar client_id: as its requests name it
    :ivar broker: that it talks to
    """

    user: str
    client_id: str
    broker: int


class Throttling:
    """Counts what clients produce and fetch, and says how long each has to wait.

    :param quotas: those that there are, as they change
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._rates = Rates()

    def produced(self, client: Metered, size: int, now: int) -> int:
        """Count the bytes of a Produce, and return the ms for which its client has to wait."""
        return self._counted(PRODUCE, client, size, now)

    def fetched(self, client: Metered, size: int, now: int) -> int:
        """Likewise those of an answer to a Fetch. What has to wait is not sent, and does not count."""
        waits = self._counted(FETCH, client, size, now)
        if waits:
            self._counted(FETCH, client, -size, now)
        return waits

    def most_fetched(self, client: Metered) -> int | None:
        """Return the bytes that an answer to a Fetch may have, if it is ever to be sent; None for no bound."""
        quota = quota_of(self._quotas, FETCH, client.user, client.client_id)
        return None if quota is None else int(quota.limit * (WINDOWS - 1) * WINDOW_MS / 1_000)

    def _counted(self, key: str, client: Metered, size: int, now: int) -> int:
        quota = quota_of(self._quotas, key, client.user, client.client_id)
        if quota is None:
            return 0
        rate = self._rates.of(key, client.broker, *quota.whose)
        rate.record(size, now)
        return rate.excess_ms(quota.limit, now)
