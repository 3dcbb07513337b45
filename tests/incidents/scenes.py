"""What is done to clients: each scene is one group, and one thing that goes wrong in it, or nothing.

Every scene names its victims, waits at the broker until each step shows, and ends with the group at rest where it can.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

import kcoord_wire as kw
from tests.incidents.hall import Scene
from tests.support.clients.connect_worker import ConnectWorker
from tests.support.clients.heard import PATIENCE
from tests.support.clients.members import Member
from tests.support.wire import Wire

LONG_SESSION_MS: Final = 60_000
UNKNOWN_VERSION: Final = 9
"""Of ApiVersions; the newest is 4."""


def gather(scene: Scene, library: str, session_ms: int, **options: Any) -> Member:
    """The members, which share the topic; the last one has the session timeout and is given, the others a long one."""
    others, name = scene.names[:-1], scene.names[-1]
    members = [scene.joins(library, each, session_ms=LONG_SESSION_MS, **options) for each in others[:1]]
    if others:
        scene.gathers(others[0])  # it leads
    members += [scene.joins(library, each, session_ms=LONG_SESSION_MS, **options) for each in others[1:]]
    victim = scene.joins(library, name, session_ms=session_ms, **options)
    scene.gathers(*scene.names)
    scene.run.session_ms = session_ms
    scene.now_ready()
    return victim


def pair(scene: Scene, library: str, session_ms: int, **options: Any) -> tuple[Member, Member]:
    """Two members that share the topic; the second has the session timeout, the first a long one."""
    second = gather(scene, library, session_ms, **options)
    return scene.members[0], second


def is_healthy(scene: Scene, library: str, session_ms: int = 10_000, lives_ms: int = 2_000, **options: Any) -> None:
    """Members come and go in order."""
    gather(scene, library, session_ms, **options)
    time.sleep(lives_ms / 1000)
    scene.goes_home()


def is_killed(
    scene: Scene,
    library: str,
    session_ms: int = 6_000,
    before_ms: int = 0,
    returns_ms: int | None = None,
    **options: Any,
) -> None:
    """One process is killed once; the others have its partitions when its session is over.

    :param returns_ms: after which a supervisor starts it again; None for never
    """
    victim = gather(scene, library, session_ms, **options)
    others = [name for name in scene.names if name != victim.name]
    scene.run.victims = [victim.name]
    time.sleep(before_ms / 1000)
    scene.did("kill -9", victim.name)
    victim.kill()
    if returns_ms is not None:
        time.sleep(returns_ms / 1000)
        scene.joins(library, victim.name, session_ms=session_ms, **options)
        others.append(victim.name)
        time.sleep(max(0, session_ms - returns_ms) / 1000 + 1)  # it is there twice until then
    scene.gathers(*others)
    time.sleep(2)
    scene.goes_home()


def freezes(
    scene: Scene, library: str, session_ms: int, frozen_ms: int, before_ms: int = 0, times: int = 1, **options: Any
) -> None:
    """One process is stopped for a time and goes on."""
    victim = gather(scene, library, session_ms, **options)
    scene.run.victims = [victim.name]
    for _ in range(times):
        time.sleep(before_ms / 1000)
        with scene.doing("SIGSTOP", victim.name):
            victim.stop()
            time.sleep(frozen_ms / 1000)
            victim.go_on()
        time.sleep(2)
        scene.gathers(*scene.names)
    scene.goes_home()


def is_cut_off(scene: Scene, library: str, session_ms: int = 5_000, cut_ms: int = 9_000, **options: Any) -> None:
    """The network of one client carries nothing for a time; its process runs on."""
    assert scene.pods is not None
    victim = gather(scene, library, session_ms, **options)
    scene.run.victims = [victim.name]
    with scene.doing("carry nothing", victim.name):
        scene.pods.cut(scene.pod(victim.name))
        time.sleep(cut_ms / 1000)
        scene.pods.mend(scene.pod(victim.name))
    time.sleep(3)
    scene.waits(lambda: scene.has(*scene.names), "it is not back")
    time.sleep(1)
    scene.goes_home()


def is_cut_from_a_broker(
    scene: Scene, library: str, of: str, session_ms: int = 6_000, cut_ms: int = 12_000, **options: Any
) -> None:
    """Nothing of one client reaches one broker for a time.

    :param of: ``coordinator``, or ``leader``: of the most of its partitions, and not the coordinator
    """
    assert scene.pods is not None
    victim = gather(scene, library, session_ms, **options)
    broker = scene.broker_of(of, victim)
    host = broker.address.partition(":")[0]
    scene.run.victims = [victim.name, broker.address] if of == "leader" else [victim.name]
    with scene.doing(f"drop what it sends to the {of} {broker.address}", victim.name):
        scene.pods.cut(scene.pod(victim.name), [host])
        time.sleep(cut_ms / 1000)
        scene.pods.mend(scene.pod(victim.name), [host])
    time.sleep(3)
    scene.waits(lambda: scene.has(*scene.names), "it is not back")
    time.sleep(2)
    scene.goes_home()


def is_refused(scene: Scene, library: str, of: str, seconds: float = 10, **options: Any) -> None:
    """An ACL forbids the group or the topic for a time."""
    gather(scene, library, 20_000, **options)
    name = scene.name if of == "group" else scene.topic
    scene.run.victims = [name, *scene.names]
    kind = ResourceType.GROUP if of == "group" else ResourceType.TOPIC
    everybody = {"principal": "User:*", "host": "*"}
    about = (kind, name, ResourcePatternType.LITERAL)
    allowed = AclBinding(*about, **everybody, operation=AclOperation.ALL, permission_type=AclPermissionType.ALLOW)
    denied = AclBinding(*about, **everybody, operation=AclOperation.READ, permission_type=AclPermissionType.DENY)
    admin = administers(scene)
    for done in admin.create_acls([allowed]).values():
        done.result(PATIENCE)
    with scene.doing(f"deny READ on the {of}", name):
        for done in admin.create_acls([denied]).values():
            done.result(PATIENCE)
        time.sleep(seconds)
        what = {"operation": AclOperation.READ, "permission_type": AclPermissionType.DENY}
        filtered = AclBindingFilter(*about, **everybody, **what)
        for found in admin.delete_acls([filtered]).values():
            found.result(PATIENCE)
    time.sleep(4)
    scene.goes_home()


def loses_a_worker(scene: Scene, library: str, dies: bool, session_ms: int = 10_000) -> None:
    """Two workers of Kafka Connect, one of which is killed, or leaves as it should."""
    one, two = scene.names
    with TemporaryDirectory() as folder, ExitStack() as stack:

        def works(name: str) -> ConnectWorker:
            with scene.host(name):
                worker = ConnectWorker(name, scene.bootstrap, scene.name, Path(folder), session_ms=session_ms)
            return stack.enter_context(worker)

        first = works(one)
        scene.waits(lambda: scene.clients_now() == [one], "the first is not in")
        second = works(two)
        scene.waits(lambda: scene.clients_now() == sorted([one, two]), "the second is not in")
        time.sleep(3)
        scene.run.session_ms, scene.run.victims = session_ms, [two]
        scene.now_ready()
        if dies:
            scene.did("kill -9", two)
            second.kill()
        else:
            second.leave()
        scene.waits(lambda: scene.clients_now() == [one], "the first is not alone")
        time.sleep(3)
        first.leave()


def crashes_in_a_loop(
    scene: Scene,
    library: str,
    times: int = 8,
    lives_ms: int = 2500,
    session_ms: int = 45_000,
    waits_ms: int = 0,
    **options: Any,
) -> None:
    """A process is killed soon after each start, by which its session outlives it.

    :param waits_ms: before the supervisor starts it again
    """
    *others, looping = scene.names
    for name in others:
        scene.joins(library, name, session_ms=session_ms, **options)
    scene.gathers(*others)
    scene.run.session_ms, scene.run.victims = session_ms, [looping]
    scene.now_ready()
    for _ in range(times):
        looper = scene.program(library, looping, session_ms=session_ms, **options)
        looper.send("join")
        time.sleep(lives_ms / 1000)
        scene.did("kill -9", looping)
        looper.kill()
        time.sleep(waits_ms / 1000)
    time.sleep(2)
    scene.goes_home()


def polls_late(
    scene: Scene, library: str, poll_ms: int = 4_000, stall_ms: int = 8_000, times: int = 1, **options: Any
) -> None:
    """An application needs longer between two polls than max.poll.interval.ms."""
    own = {"max_poll_interval_ms": poll_ms} if library == "aiokafka" else {}  # apart from the time to join, there
    *others, late = scene.names
    for name in others:
        scene.joins(library, name, session_ms=LONG_SESSION_MS, **options)
    scene.gathers(*others)
    victim = scene.joins(library, late, session_ms=poll_ms, poll_ms=poll_ms, **own, **options)
    scene.gathers(*scene.names)
    scene.run.session_ms, scene.run.victims = poll_ms, [late]
    scene.now_ready()
    for _ in range(times):
        with scene.doing("stall", late):
            victim.command("stall", ms=stall_ms)
        scene.gathers(*scene.names)
    scene.goes_home()


def is_fenced(scene: Scene, library: str, session_ms: int = 20_000, restarts: int = 0, **options: Any) -> None:
    """A second process comes with the group.instance.id of one that runs.

    :param restarts: how often a supervisor starts the process again that was fenced
    """
    *others, name = scene.names
    for other in others:
        scene.joins(library, other, session_ms=session_ms, **options)
    scene.gathers(*others)
    one = scene.joins(library, name, session_ms=session_ms, static=True, **options)
    scene.gathers(*scene.names)
    scene.run.session_ms, scene.run.victims = session_ms, [name]
    scene.now_ready()
    for number in range(restarts + 1):
        scene.did("a second process with its group.instance.id", name)
        two = scene.joins(library, name, session_ms=session_ms, static=True, **options)
        scene.waits(lambda one=one, two=two: bool(one.complaints or two.complaints), "no process was fenced")
        if number < restarts:
            fenced, one = (one, two) if one.complaints else (two, one)
            fenced.kill()
            time.sleep(2)
    time.sleep(4)
    scene.goes_home()


def subscribes_anew(scene: Scene, library: str) -> None:
    """A member subscribes to one more topic."""
    first, second = pair(scene, library, 10_000)
    scene.run.victims = [second.name]
    scene.did("subscribe to one more topic", second.name)
    second.command("subscribe", topics=[scene.topic, scene.more])
    scene.settle(2, 6)
    scene.part(second, first)


def mixes_assignors(scene: Scene, library: str) -> None:
    """A member offers none of the assignors that the others have, and is refused again and again."""
    first, second = pair(scene, library, 10_000, assignor="range")
    scene.run.victims = ["outsider"]
    scene.did("join with roundrobin among members with range", "outsider")
    outsider = scene.joins("confluent", "outsider", "roundrobin", reconnect_backoff_max_ms=200)
    scene.waits(lambda: bool(outsider.complaints), "it was not refused")
    time.sleep(3)
    outsider.kill()
    scene.part(second, first)


def overflows(scene: Scene, library: str, limit: int) -> None:
    """One member more than group.max.size."""
    names = [f"member-{number}" for number in range(1, limit + 1)]
    for name in names:
        scene.joins(library, name, session_ms=20_000)
    scene.waits(lambda: scene.has(*names), "they are not in")
    scene.run.session_ms, scene.run.victims = 20_000, ["surplus"]
    scene.now_ready()
    scene.did("join a full group", "surplus")
    surplus = scene.joins(library, "surplus", session_ms=20_000)
    scene.waits(lambda: bool(surplus.complaints), "it was not refused")
    time.sleep(2)
    scene.goes_home()


def deploys(scene: Scene, library: str, static: bool, count: int = 5, session_ms: int = 20_000) -> None:
    """All instances are restarted in order, one after the other."""
    names = list(scene.names) if scene.pods is not None else [f"web-{number}" for number in range(1, count + 1)]
    members = [scene.joins(library, name, session_ms=session_ms, static=static) for name in names]
    scene.waits(lambda: scene.has(*names), "they are not in")
    time.sleep(1)
    scene.run.session_ms, scene.run.victims = session_ms, names
    scene.now_ready()
    for number, name in enumerate(names):
        with scene.doing("restart", name):
            members[number].leave()
            members[number].kill()
            fresh = members[number] = scene.joins(library, name, session_ms=session_ms, static=static)
            scene.waits(lambda fresh=fresh: bool(fresh.owned), "it is not back")
        scene.waits(lambda: scene.has(*names), "they are not together again")
        time.sleep(0.5)
    time.sleep(1)
    scene.goes_home()


def sleeps_in_the_assignor(scene: Scene, library: str) -> None:
    """The leader needs five seconds to assign, in which all the others wait."""
    scene.joins(library, "leader", "slow-range", session_ms=20_000)
    scene.settles(leader=4)
    scene.run.session_ms, scene.run.victims = 20_000, ["leader"]
    scene.now_ready()
    scene.did("sleep 5 s in the assignor", "leader")
    scene.joins(library, "follower", "slow-range", session_ms=20_000)
    scene.settles(leader=2, follower=2)
    time.sleep(1)
    scene.goes_home()


def administers(scene: Scene) -> AdminClient:
    """An operator's client. What it is asked for is answered as long as it is referred to."""
    with scene.host("operator"):
        return AdminClient({"bootstrap.servers": scene.bootstrap, "client.id": "operator"})


def _fill(member: Member, count: int) -> None:
    """Records in each partition, which the member reads and commits."""
    member.produce([(partition, f"{number}") for partition in range(4) for number in range(count)])


def _consume(scene: Scene, member: Member, count: int) -> None:
    scene.waits(lambda: len(member.records) >= count, "it has not read all")
    member.commit()


def resets_offsets(scene: Scene, library: str, to: int = 0) -> None:
    """An operator sets the group's offsets back, as kafka-consumer-groups.sh --reset-offsets does it."""
    first = scene.joins(library, scene.names[0])
    scene.settle(4)
    _fill(first, 20)
    _consume(scene, first, 80)
    first.leave()
    scene.settles()
    first.kill()
    scene.run.session_ms, scene.run.victims = 10_000, [scene.topic]
    scene.now_ready()
    with scene.doing(f"reset the offsets to {to}", scene.topic):
        wanted = [TopicPartition(scene.topic, partition, to) for partition in range(4)]
        admin = administers(scene)
        changed = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(scene.name, wanted)])
        for done in changed.values():
            done.result(PATIENCE)
    again = scene.joins(library, scene.names[0])
    scene.settle(4)
    _consume(scene, again, 80 - 4 * to)
    again.leave()


def retention_resets(scene: Scene, library: str) -> None:
    """Records are deleted that the group has not read yet; auto.offset.reset moves it."""
    first = scene.joins(library, scene.names[0])
    scene.settle(4)
    _fill(first, 5)
    _consume(scene, first, 20)
    first.leave()
    _fill(first, 20)
    scene.run.session_ms, scene.run.victims = 10_000, [scene.topic]
    scene.now_ready()
    with scene.doing("delete records up to offset 15", scene.topic):
        admin = administers(scene)
        gone = admin.delete_records([TopicPartition(scene.topic, partition, 15) for partition in range(4)])
        for done in gone.values():
            done.result(PATIENCE)
    first.kill()
    again = scene.joins(library, scene.names[0])
    scene.settle(4)
    _consume(scene, again, 40)
    again.leave()


def serves_two_applications(scene: Scene, library: str) -> None:
    """Another application, with another topic, uses the group's name."""
    scene.joins(library, "billing-1")
    scene.joins(library, "billing-2")
    scene.settles(**{"billing-1": 2, "billing-2": 2})
    scene.run.session_ms, scene.run.victims = 10_000, ["audit-1"]
    scene.now_ready()
    scene.did("join with another topic", "audit-1")
    scene.joins(library, "audit-1", topic=scene.more)
    scene.waits(lambda: scene.described()[1] == {"billing-1": 2, "billing-2": 2, "audit-1": 4}, "it is not in")
    time.sleep(10)
    scene.goes_home()


def is_deleted_and_formed_again(scene: Scene, library: str) -> None:
    """An operator deletes the empty group, and its members come back."""
    first, second = pair(scene, library, 10_000)
    scene.part(second, first)
    scene.run.victims = [scene.name]
    with scene.doing("delete the group", scene.name):
        admin = administers(scene)
        for done in admin.delete_consumer_groups([scene.name]).values():
            done.result(PATIENCE)
    for member in first, second:
        member.kill()
    first = scene.joins(library, scene.names[0])
    second = scene.joins(library, scene.names[1])
    scene.settle(2, 2)
    scene.part(second, first)


def _watch_ends(scene: Scene, seconds: float) -> None:
    """Ask for the ends of the partitions once a second, as a lag exporter does."""
    admin = administers(scene)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = admin.list_offsets({TopicPartition(scene.topic, p): OffsetSpec.latest() for p in range(4)})
        for done in asked.values():
            done.result(PATIENCE)
        time.sleep(1)


def stops_reading(scene: Scene, library: str, count: int, seconds: float = 40) -> None:
    """A member fetches some of its two partitions no more and heartbeats on, while their ends move."""
    first, second = pair(scene, library, 10_000)
    _fill(first, 5)
    _consume(scene, first, 10)
    _consume(scene, second, 10)
    paused = second.now_owned[:count]
    scene.run.victims = [second.name, *(f"{scene.topic}-{partition}" for partition in paused)]
    with scene.doing(f"pause {count} of its 2 partitions", second.name):
        second.command("pause", partitions=paused)
        for _ in range(6):
            _fill(first, 5)
            _watch_ends(scene, seconds / 6)
            for member in first, second:
                member.commit()
    scene.part(second, first)


def lags(scene: Scene, library: str, seconds: float = 40) -> None:
    """A member reads and never commits, while the ends of its partitions move."""
    first, second = pair(scene, library, 10_000)
    _fill(first, 5)
    _consume(scene, first, 10)
    _consume(scene, second, 10)
    scene.run.victims = [second.name, *(f"{scene.topic}-{partition}" for partition in second.now_owned)]
    with scene.doing("commit no more", second.name):
        for _ in range(10):
            _fill(first, 5)
            time.sleep(seconds / 10)
            first.commit()
    scene.part(second, first)


def speaks_tls(scene: Scene, library: str) -> None:
    """A client that speaks TLS to the plain port."""
    scene.run.victims = ["secure"]
    with scene.host("secure"), scene.doing("TLS to a plain port", "secure"):
        settings = {"security.protocol": "ssl", "enable.ssl.certificate.verification": False, "client.id": "secure"}
        settings |= {"bootstrap.servers": scene.bootstrap, "group.id": scene.name, "reconnect.backoff.ms": 500}
        quiet = logging.Logger("tls")  # it complains of each attempt
        quiet.addHandler(logging.NullHandler())
        consumer = Consumer(settings, logger=quiet)
        consumer.subscribe([scene.topic])
        end = time.monotonic() + 5
        while time.monotonic() < end:
            consumer.poll(0.2)
        consumer.close()


def asks_for_the_impossible(scene: Scene, library: str, times: int = 20) -> None:
    """A client asks ApiVersions in a version that the broker does not have, and asks again."""
    scene.run.victims = ["future"]
    body = kw.encode_request(kw.ApiVersionsRequest(client_software_name="future", client_software_version="9"), 4)
    with scene.host("future"), scene.doing("ApiVersions version 9", "future"):
        for _ in range(times):
            with Wire(scene.bootstrap.partition(",")[0], client_id="future") as wire:
                wire.send_raw(kw.frame(body[:2] + UNKNOWN_VERSION.to_bytes(2, "big") + body[4:]))
                wire.receive_body()
            time.sleep(0.1)
