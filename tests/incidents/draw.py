"""Incidents that a seed draws: kind, client library, timing, size of the group, sources and damage; then halls of them.

Laws:

* The same count and seed give the same halls, names and numbers; nothing else decides.
* Each kind is drawn once before any is drawn twice; then each as often as its weight says. One in so many is healthy.
* The name of a group says nothing of its kind.
* Each third hall is kept aside (`is_aside`): who writes rules does not look at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from tests.incidents import changes, growth, lateness, networks, outages, reading, refusals, scenes, streams
from tests.incidents.damage import INTACT, Damage
from tests.incidents.hall import Hall, Plan, Play
from tests.incidents.labels import CAPTURE, LOG
from tests.incidents.programme import ACLS, KAFKAJS, LIMIT, MODERN, NEWER, QUICK_ELECTION
from tests.support.kafka_broker import KAFKA

Drawn = dict[str, Any]

CLASSIC: Final = ("confluent", "kafka-python", "aiokafka", "java", "franz-go", "sarama")
ANY: Final = (*CLASSIC, "kafkajs")
PYTHON: Final = ("confluent", "kafka-python", "aiokafka")
STALLING: Final = ("confluent", "kafka-python", "java")
ADDRESSES: Final = ("confluent", "kafka-python", "aiokafka", "java", "kcoord")
"""Libraries whose programs take the addresses of several brokers."""
COMMITTING: Final[Mapping[str, Drawn]] = {
    "confluent": {"enable_auto_commit": True, "auto_commit_interval_ms": 1_000},
    "kafka-python": {"enable_auto_commit": True, "auto_commit_interval_ms": 1_000},
    "aiokafka": {"enable_auto_commit": True, "auto_commit_interval_ms": 1_000},
    "java": {"enable_auto_commit": "true", "auto_commit_interval_ms": "1000"},
}
"""Options by which a member commits what it has read, as most applications have it."""
_WORDS: Final = (
    *("orders", "ledger", "search", "mailer", "thumbs", "audit", "stock", "price", "fraud", "route", "claims", "usage"),
    *("alerts", "export", "sync", "score", "feeds", "quotes", "parcel", "tax", "rides", "menu", "loans", "votes"),
)
_STEMS: Final = ("app-", "worker-", "node", "pod-", "svc-", "i-", "consumer-", "web-")
_A_HALL: Final = 5
"""Groups side by side: more of them, and a machine of two cores ends sessions by itself."""
_ASIDE: Final = 3
_RATES: Final = (0, 5, 20, 60)
_ENDINGS: Final = ("one by one", "at once", "stays", "stays")


@dataclass(frozen=True)
class Lot:
    """What can be drawn.

    :ivar options: drawn for the scene
    :ivar sizes: of the group
    :ivar logged: whether the brokers' own logs show it
    :ivar fed: whether records may come meanwhile
    :ivar newer: whether it needs the newer broker (KIP-848)
    :ivar nodes: how many brokers it needs
    :ivar weight: how often it is drawn after all have been drawn once
    :ivar fault: done to a broker of its own hall, drawn
    :ivar recorded: whether it can be played through `kcoord record`
    :ivar stays: whether members stay, whose leaving would be one more incident: they are static, or of Streams
    :ivar rates: of records that come meanwhile, a second
    :ivar secured: the security protocol of one more listener that it needs
    """

    kind: str
    play: Play
    libraries: Sequence[str]
    options: Callable[[Random], Drawn] = lambda chance: {}
    sizes: Sequence[int] = (2, 3, 4)
    logged: bool = False
    fed: bool = True
    newer: bool = False
    nodes: int = 1
    weight: float = 1.0
    fault: Callable[[Random], Callable[[Hall], Any]] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    recorded: bool = True
    rates: Sequence[int] = _RATES
    stays: bool = False
    secured: str = ""


def _ms(chance: Random, low: int, high: int) -> int:
    return chance.randrange(low, high + 1, 50)


def _killed(chance: Random) -> Drawn:
    session = chance.choice((4_000, 6_000, 8_000, 10_000))
    returns = chance.choice((None, None, chance.randrange(500, 3_000)))
    return {"session_ms": session, "before_ms": _ms(chance, 0, 8_000), "returns_ms": returns}


def _frozen(chance: Random) -> Drawn:
    session = chance.choice((3_000, 4_000, 6_000))
    return {
        "session_ms": session,
        "frozen_ms": session + _ms(chance, 1_500, 8_000),
        "before_ms": _ms(chance, 0, 6_000),
        "times": chance.choice((1, 1, 2)),
    }


def _briefly(chance: Random) -> Drawn:
    session = chance.choice((8_000, 10_000, 15_000))
    return {"session_ms": session, "frozen_ms": _ms(chance, 800, session // 2), "before_ms": _ms(chance, 0, 5_000)}


def _cut(chance: Random) -> Drawn:
    session = chance.choice((4_000, 6_000, 8_000))
    return {"session_ms": session, "cut_ms": session + _ms(chance, 2_500, 9_000)}


def _looping(chance: Random) -> Drawn:
    return {
        "times": chance.randrange(5, 9),
        "lives_ms": _ms(chance, 2_000, 4_500),
        "session_ms": chance.choice((10_000, 30_000, 45_000)),
        "waits_ms": chance.choice((0, 500, 1_500)),
    }


def _probed(chance: Random) -> Drawn:
    return {"times": 4, "lives_ms": _ms(chance, 7_000, 9_000), "session_ms": 30_000, "waits_ms": 500}


def _late(chance: Random) -> Drawn:
    poll = chance.choice((3_000, 4_000, 5_000))
    return {"poll_ms": poll, "stall_ms": poll + _ms(chance, 2_500, 8_000), "times": chance.choice((1, 1, 2))}


def _doubled(chance: Random) -> Drawn:
    return {"restarts": chance.randrange(0, 4)}


def _scaled(chance: Random) -> Drawn:
    return {"rounds": chance.choice((2, 3)), "more": chance.choice((1, 2)), "stays_ms": _ms(chance, 3_000, 6_000)}


def _slow(chance: Random) -> Drawn:
    by_pattern = chance.choice((True, False))
    return {"linger_ms": _ms(chance, 6_000, 16_000), "poll_ms": 60_000, "by_pattern": by_pattern, **MODERN}


def _too_slow(chance: Random) -> Drawn:
    poll = chance.choice((5_000, 6_000, 8_000))
    return {"linger_ms": poll + _ms(chance, 4_000, 9_000), "poll_ms": poll, **MODERN}


def _tight(chance: Random) -> Drawn:
    session = chance.choice((2_000, 3_000))
    return {
        "session_ms": session,
        "beats_ms": session - chance.choice((10, 20, 50, 100)),
        "lives_ms": _ms(chance, 22_000, 30_000),
    }


def _too_small(chance: Random) -> Drawn:
    takes = chance.choice((60_000, 100_000, 200_000))
    return {"takes": takes, "size": takes * chance.choice((2, 3, 4)), "lasts_ms": _ms(chance, 12_000, 20_000)}


def _hot(chance: Random) -> Drawn:
    pace = chance.choice((20, 40, 50))
    rate = int(1_000 / pace * chance.choice((2, 3, 5)))
    return {"pace_ms": pace, "rate": rate, "lasts_ms": _ms(chance, 20_000, 30_000)}


def _throttled(chance: Random) -> Drawn:
    return {
        "bytes_a_second": chance.choice((2_000, 5_000, 10_000)),
        "rate": chance.choice((40, 100, 200)),
        "lasts_ms": _ms(chance, 18_000, 28_000),
    }


def _out(chance: Random) -> Callable[[Hall], Any]:
    how = chance.choice(("kill", "stop", "freeze"))
    return partial(outages.is_out, how=how, seconds=chance.randrange(2, 14))


def _fixed(**options: Any) -> Callable[[Random], Drawn]:
    return lambda chance: dict(options)


def _modern(options: Callable[[Random], Drawn]) -> Callable[[Random], Drawn]:
    """Of a member of KIP-848, whose session timeout is the broker's, 4 s."""
    return lambda chance: {**options(chance), "session_ms": 4_000, **MODERN}


def _outliving(chance: Random) -> Drawn:
    return {"frozen_ms": _ms(chance, 6_000, 12_000), "before_ms": _ms(chance, 0, 5_000)}


def _streams(chance: Random) -> Drawn:
    return {"session_ms": chance.choice((6_000, 10_000))}


def _streams_killed(chance: Random) -> Drawn:
    return {**_streams(chance), "returns_ms": chance.choice((None, chance.randrange(500, 3_000)))}


def _streams_frozen(chance: Random) -> Drawn:
    session = chance.choice((6_000, 8_000))
    return {"session_ms": session, "frozen_ms": session + _ms(chance, 2_000, 6_000)}


def _migrated(chance: Random) -> Drawn:
    ways: tuple[tuple[Drawn, Drawn], ...] = (({}, MODERN), ({}, MODERN), (MODERN, {}))
    own, to = chance.choice(ways)
    return {**own, "to": to, "count": chance.choice((2, 3, 3)), "stays_ms": _ms(chance, 1_000, 4_000)}


def _topics(chance: Random) -> Drawn:
    return {
        "count": chance.choice((1, 2, 3)),
        "every_ms": _ms(chance, 4_000, 8_000),
        "refresh_ms": chance.choice((2_000, 4_000)),
    }


def _handled(chance: Random) -> Drawn:
    poll = chance.choice((5_000, 6_000, 8_000))
    linger = poll + _ms(chance, 4_000, 9_000)
    return {"poll_ms": poll, "linger_ms": linger, "session_ms": chance.choice((10_000, 30_000))}


def _blocked(chance: Random) -> Drawn:
    session = chance.choice((6_000, 8_000, 10_000))
    return {
        "session_ms": session,
        "stall_ms": session + _ms(chance, 3_000, 8_000),
        "blocks": chance.choice((True, False)),
        "times": chance.choice((1, 1, 2)),
    }


def _stormy(chance: Random) -> Drawn:
    poll = chance.choice((3_000, 4_000))
    return {"poll_ms": poll, "stall_ms": poll + _ms(chance, 2_000, 4_000), "rounds": chance.choice((1, 1, 2))}


def _lossy(chance: Random) -> Drawn:
    return {
        "session_ms": chance.choice((3_000, 4_000)),
        "share": chance.choice((0.4, 0.5, 0.6)),
        "lasts_ms": _ms(chance, 15_000, 25_000),
    }


def _dropped(chance: Random) -> Drawn:
    return {
        "session_ms": chance.choice((4_000, 6_000)),
        "timeout_ms": chance.choice((8_000, 10_000, 12_000)),
        "before_ms": _ms(chance, 0, 5_000),
    }


_TWO: Final = (2,)
_REPLICAS: Final = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "1000"}

LOTS: Final = (
    Lot("healthy", scenes.is_healthy, ANY, lambda c: {"lives_ms": _ms(c, 8_000, 25_000)}, logged=True, weight=14),
    Lot(
        "healthy",
        scenes.is_healthy,
        ("confluent",),
        lambda c: {"lives_ms": _ms(c, 8_000, 25_000), **MODERN},
        newer=True,
        weight=2,
    ),
    Lot("healthy", scenes.loses_a_worker, ("connect",), _fixed(dies=False), _TWO, fed=False, weight=0),
    Lot("frozen shortly", scenes.freezes, ANY, _briefly, weight=2),
    Lot("static deploy", scenes.deploys, ("confluent", "aiokafka"), _fixed(static=True), (3, 4), fed=False),
    Lot("deploy", scenes.deploys, PYTHON, _fixed(static=False), (3, 4), logged=True, fed=False),
    Lot("killed", scenes.is_killed, ANY, _killed, logged=True, weight=3),
    Lot("killed", scenes.is_killed, ("confluent",), _modern(lambda c: {}), newer=True),
    Lot("killed", scenes.loses_a_worker, ("connect",), _fixed(dies=True, session_ms=8_000), _TWO, fed=False),
    Lot("frozen", scenes.freezes, CLASSIC, _frozen, logged=True, weight=3),
    Lot("frozen", scenes.freezes, ("confluent",), _modern(_outliving), newer=True),
    Lot("cut off", scenes.is_cut_off, ("confluent", "kafka-python", "aiokafka", "java"), _cut, logged=True, weight=2),
    Lot("crash loop", scenes.crashes_in_a_loop, PYTHON, _looping, (2, 3), logged=True, weight=2),
    Lot("crash loop", scenes.crashes_in_a_loop, PYTHON, _probed, (2, 3), logged=True),
    Lot("max poll", scenes.polls_late, STALLING, _late, (2, 3), logged=True, weight=2),
    Lot("fenced", scenes.is_fenced, PYTHON, _doubled, (2, 3), logged=True, weight=2, stays=True),
    Lot(
        "instance in use",
        growth.is_there_twice,
        ("confluent",),
        lambda c: {"restarts": c.randrange(0, 4), "waits_ms": _ms(c, 500, 3_000), **MODERN},
        newer=True,
        stays=True,
    ),
    Lot("slow revocation", growth.gives_up_slowly, ("confluent",), _slow, (2, 3), newer=True, weight=2),
    Lot("fenced epoch", growth.gives_up_slowly, ("confluent",), _too_slow, (2, 3), newer=True, weight=2),
    Lot(
        "autoscaler", growth.is_scaled, ("confluent", "kafka-python", "aiokafka"), _scaled, _TWO, logged=True, weight=2
    ),
    Lot("tight heartbeats", growth.beats_too_rarely, PYTHON, _tight, (2, 3), logged=True, weight=2),
    Lot(
        "poison record",
        reading.is_poisoned,
        PYTHON,
        lambda c: {"lasts_ms": _ms(c, 15_000, 25_000)},
        weight=2,
        rates=(10, 20, 60),
    ),
    Lot("response too large", reading.cannot_take, ("confluent",), _too_small, (1, 2, 3), weight=2),
    Lot("hot partition", reading.has_a_hot_partition, ("confluent", "kafka-python"), _hot, weight=2),
    Lot("quota", reading.is_throttled, ("confluent", "kafka-python", "java"), _throttled, weight=2),
    Lot(
        "streams killed",
        streams.loses_an_instance,
        ("streams",),
        _streams_killed,
        _TWO,
        logged=True,
        rates=(5, 20),
        stays=True,
    ),
    Lot(
        "streams frozen",
        streams.freezes_an_instance,
        ("streams",),
        _streams_frozen,
        _TWO,
        logged=True,
        rates=(5, 20),
        stays=True,
    ),
    Lot(
        "streams restarted",
        streams.restarts_instances,
        ("streams",),
        lambda c: {**_streams(c), "count": c.choice((1, 2))},
        _TWO,
        logged=True,
        rates=(5, 20),
        stays=True,
    ),
    Lot(
        "static deploy",
        streams.restarts_instances,
        ("streams",),
        _fixed(session_ms=60_000, count=2, static=True),
        _TWO,
        fed=False,
        weight=0.5,
    ),
    Lot(
        "protocol changed",
        changes.changes_protocol,
        ("confluent", "java"),
        _migrated,
        (3, 4),
        logged=True,
        newer=True,
        weight=2,
        properties={"group.consumer.migration.policy": "bidirectional"},
    ),
    Lot("new topics", changes.gains_topics, ("confluent", "java"), _topics, logged=True, fed=False),
    Lot(
        "new topics",
        changes.gains_topics,
        ("confluent",),
        lambda c: {**_topics(c), **MODERN},
        fed=False,
        newer=True,
        weight=0.5,
    ),
    Lot(
        "outside commit refused",
        changes.refuses_offsets,
        ("confluent", "java", "aiokafka"),
        lambda c: {"times": c.choice((1, 2, 3)), "to": c.randrange(0, 4), "waits_ms": _ms(c, 1_000, 4_000)},
        rates=(5, 20, 60),
    ),
    Lot("slow handler", lateness.lets_the_group_wait, ("sarama", "aiokafka"), _handled, (3, 4), logged=True, weight=2),
    Lot("blocked loop", lateness.blocks_its_loop, ("kafkajs",), _blocked, (2, 3), logged=True, rates=(20, 60)),
    Lot("poll storm", lateness.polls_late_in_turn, STALLING, _stormy, (3, 4), logged=True, weight=2),
    Lot(
        "lossy network",
        networks.loses_packets,
        ("confluent", "kafka-python", "aiokafka", "java"),
        _lossy,
        (2, 3),
        recorded=False,
        weight=2,
    ),
    Lot(
        "connection dropped",
        networks.loses_its_connections,
        ("confluent", "aiokafka", "java"),
        _dropped,
        (2, 3),
        recorded=False,
        weight=2,
    ),
    Lot(
        "password refused",
        refusals.has_a_wrong_password,
        ("confluent", "java"),
        lambda c: {"lasts_ms": _ms(c, 6_000, 14_000), "is_replaced": c.choice((True, False))},
        (2, 3),
        logged=True,
        recorded=False,
        secured="SASL_PLAINTEXT",
        weight=1.5,
    ),
    Lot(
        "certificate refused",
        refusals.distrusts_the_broker,
        ("confluent", "java"),
        lambda c: {"lasts_ms": _ms(c, 6_000, 14_000)},
        _TWO,
        logged=True,
        recorded=False,
        secured="SSL",
    ),
    Lot("subscription", scenes.subscribes_anew, ("confluent", "java"), sizes=_TWO, fed=False),
    Lot("assignors", scenes.mixes_assignors, ("confluent", "kafka-python"), sizes=_TWO, fed=False),
    Lot("too many", scenes.overflows, ("confluent",), _fixed(limit=LIMIT), _TWO, fed=False),
    Lot("slow leader", scenes.sleeps_in_the_assignor, ("kafka-python", "aiokafka"), sizes=_TWO, fed=False),
    Lot("offset reset", scenes.resets_offsets, PYTHON, lambda c: {"to": c.randrange(0, 18)}, _TWO, fed=False),
    Lot("retention", scenes.retention_resets, ("confluent",), sizes=_TWO, fed=False),
    Lot("two applications", scenes.serves_two_applications, ("confluent", "kafka-python"), sizes=_TWO, fed=False),
    Lot("deleted", scenes.is_deleted_and_formed_again, ("confluent", "aiokafka"), sizes=_TWO, fed=False),
    Lot(
        "stopped reading",
        scenes.stops_reading,
        ("confluent", "kafka-python"),
        lambda c: {"count": c.choice((1, 2)), "seconds": c.randrange(24, 40)},
        _TWO,
        fed=False,
    ),
    Lot("lag", scenes.lags, ("confluent",), lambda c: {"seconds": c.randrange(24, 40)}, _TWO, fed=False),
    Lot("versions", scenes.asks_for_the_impossible, ("none",), sizes=_TWO, fed=False),
    Lot("tls", scenes.speaks_tls, ("confluent",), sizes=_TWO, fed=False),
    *(
        Lot(
            f"{of} refused",
            scenes.is_refused,
            ("confluent", "java"),
            lambda c, of=of: {"of": of, "seconds": c.randrange(6, 14)},
            _TWO,
            properties=ACLS,
        )
        for of in ("group", "topic")
    ),
    *(
        Lot(
            f"cut from {of}",
            scenes.is_cut_from_a_broker,
            ("confluent", "aiokafka", "java"),
            lambda c, of=of: {**_cut(c), "of": of.rpartition(" ")[2]},
            (2, 3),
            nodes=3,
            weight=1.5,
        )
        for of in ("the coordinator", "a leader")
    ),
    Lot(
        "broker outage",
        outages.lives_through,
        ("confluent", "kafka-python", "aiokafka", "java"),
        lambda c: {"session_ms": c.choice((6_000, 10_000, 30_000))},
        (2, 3),
        logged=True,
        weight=0.8,
        fault=_out,
    ),
    Lot(
        "coordinator moved",
        outages.lives_through,
        ("confluent", "kafka-python", "aiokafka", "java"),
        lambda c: {"session_ms": c.choice((10_000, 20_000))},
        (2, 3),
        logged=True,
        nodes=3,
        weight=0.5,
        properties=QUICK_ELECTION,
        fault=lambda c: partial(outages.shut_down_one, kills=c.choice((True, False))),
    ),
    Lot(
        "unwritten log",
        outages.lives_through,
        ("confluent", "kafka-python", "java"),
        lambda c: {"session_ms": c.choice((20_000, 30_000))},
        (2, 3),
        nodes=2,
        weight=0.5,
        properties=_REPLICAS,
        fault=lambda c: partial(outages.stops_a_replica, seconds=c.randrange(12, 20)),
    ),
)


def draw(count: int, seed: int) -> list[Hall]:
    """At least so many incidents, in halls: those with a fault of their brokers take some more."""
    chance = Random(f"{count} {seed}")
    deck = [lot for lot in LOTS if lot.weight or lot.libraries == ("connect",)]
    deck += chance.choices(LOTS, [lot.weight for lot in LOTS], k=max(0, count - len(deck)))
    chance.shuffle(deck)
    names = _names(chance)
    return [
        _hall(chance, f"drawn-{seed}-{number:02}", NEWER if newer else KAFKA, lots, names)
        for number, (newer, lots) in enumerate(_together(chance, deck), 1)
    ]


def is_aside(name: str, seed: int) -> bool:
    """Whether a hall is kept aside."""
    number = int(name.rpartition("-")[2])
    return number % _ASIDE == seed % _ASIDE


def _together(chance: Random, deck: Sequence[Lot]) -> list[tuple[bool, list[Lot]]]:
    """Whether a hall has the newer broker, and its lots, which need the same brokers; those of one fault are three."""
    piles: dict[tuple[int, bool, str], list[Lot]] = {}
    halls = []
    for lot in deck:
        newer = lot.newer or chance.random() < 0.5
        if lot.fault is not None:
            halls.append((newer, [lot] * 3))
            continue
        pile = piles.setdefault((lot.nodes, newer, lot.secured), [])
        pile.append(lot)
        if len(pile) == _A_HALL:
            halls.append((newer, list(pile)))
            pile.clear()
    halls += [(newer, pile) for (_, newer, _), pile in piles.items() if pile]
    chance.shuffle(halls)
    return halls


def _hall(chance: Random, name: str, kafka: str, lots: Sequence[Lot], names: Iterator[str]) -> Hall:
    fault = lots[0].fault(chance) if lots[0].fault is not None else None
    nodes = lots[0].nodes
    recorded = nodes == 1 and fault is None and all(lot.recorded for lot in lots) and chance.random() < 0.2
    damage = _damage(chance, recorded, fault is not None)
    properties = {"group.max.size": str(LIMIT)}
    for lot in lots:
        properties |= lot.properties
    stems = chance.sample(_STEMS, len(lots))  # a quota is of a client id, whatever its group
    return Hall(
        name,
        [_plan(chance, lot, next(names), stem, damage) for lot, stem in zip(lots, stems, strict=True)],
        kafka,
        nodes,
        properties,
        fault,
        "recorder" if recorded else "broker",
        secured=lots[0].secured,
        alone=lots[0].kind == "unwritten log",
        hosted=True,
        damage=damage,
        drawn=True,
    )


def _damage(chance: Random, recorded: bool, has_fault: bool) -> Damage:
    how = chance.choice(("", "", "", "lost", "cut", "rotated", "skewed"))
    if recorded or (has_fault and how == "skewed"):
        return INTACT
    return Damage(
        how,
        chance.randrange(1 << 30),
        {"lost": chance.choice((0.001, 0.005, 0.02)), "cut": chance.choice((0.02, 0.05, 0.1))}.get(how, 0.0),
        chance.randrange(2, 5) if how == "rotated" else 1,
        chance.choice((-1, 1)) * chance.randrange(800, 6_000) if how == "skewed" else 0,
        how == "skewed" and chance.random() < 0.5,
    )


def _plan(chance: Random, lot: Lot, name: str, stem: str, damage: Damage) -> Plan:
    library = chance.choice(lot.libraries)
    size = chance.choice(lot.sizes)
    first = chance.choice((0, 1))
    options = lot.options(chance)
    rate = chance.choice(lot.rates) if lot.fed else 0
    if rate and library in COMMITTING and "group_protocol" not in options and chance.random() < 0.8:
        options = {**options, **COMMITTING[library]}
    if library == "kafkajs":
        options = {**options, **KAFKAJS}
    reads: Sequence[str] = (CAPTURE,)
    if lot.logged and damage.how != "skewed":
        reads = chance.choice(((CAPTURE,), (CAPTURE,), (LOG,), (CAPTURE, LOG)))
    members = [f"{stem}{first + number}" for number in range(size)]
    ending = "stays" if lot.stays or options.get("static") else chance.choice(_ENDINGS)
    return Plan(name, lot.kind, lot.play, library, options, members, rate, reads, ending)


def _names(chance: Random) -> Iterator[str]:
    words = list(_WORDS)
    number = 0
    while True:
        number += 1
        chance.shuffle(words)
        yield from (f"{word}{number}" for word in words)
