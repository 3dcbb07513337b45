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

UNKNOWN_VERSION: Final = 9
"""Of ApiVersions; the newest is 4."""


def pair(scene: Scene, library: str, session_ms: int, **options: Any) -> tuple[Member, Member]:
    """Two members that share the topic; the second has the session timeout, the first a long one."""
    first = scene.joins(library, "first", session_ms=60_000, **options)
    scene.settles(first=4)
    second = scene.joins(library, "second", session_ms=session_ms, **options)
    scene.settles(first=2, second=2)
    scene.run.session_ms = session_ms
    scene.now_ready()
    return first, second


def is_healthy(scene: Scene, library: str, session_ms: int = 10_000, **options: Any) -> None:
    """Members come and go in order."""
    first, second = pair(scene, library, session_ms, **options)
    time.sleep(2)
    scene.part(second, first)


def is_killed(scene: Scene, library: str, session_ms: int = 6_000, **options: Any) -> None:
    """One process is killed once; the others have its partitions when its session is over."""
    first, second = pair(scene, library, session_ms, **options)
    scene.run.victims = ["second"]
    scene.did("kill -9", "second")
    second.kill()
    scene.settles(first=4)
    first.leave()


def freezes(scene: Scene, library: str, session_ms: int, frozen_ms: int, **options: Any) -> None:
    """One process is stopped for a time and goes on."""
    first, second = pair(scene, library, session_ms, **options)
    scene.run.victims = ["second"]
    with scene.doing("SIGSTOP", "second"):
        second.stop()
        time.sleep(frozen_ms / 1000)
        second.go_on()
    time.sleep(2)
    scene.settles(first=2, second=2)
    scene.part(second, first)


def is_cut_off(scene: Scene, library: str, session_ms: int = 5_000, cut_ms: int = 9_000, **options: Any) -> None:
    """The network of one client carries nothing for a time; its process runs on."""
    assert scene.proxy is not None
    direct, scene.run.session_ms = scene.bootstrap, session_ms
    first = scene.joins(library, "first", session_ms=60_000, **options)
    scene.settles(first=4)
    scene.bootstrap = scene.proxy.address
    second = scene.joins(library, "second", session_ms=session_ms, **options)
    scene.settles(first=2, second=2)
    scene.bootstrap = direct
    scene.run.victims = ["second"]
    scene.now_ready()
    with scene.doing("carry nothing", "second"):
        scene.proxy.hold()
        time.sleep(cut_ms / 1000)
        scene.proxy.heal()
    time.sleep(3)
    scene.waits(lambda: scene.has("first", "second"), "it is not back")
    time.sleep(1)
    for member in second, first:
        member.kill()


def is_refused(scene: Scene, library: str, of: str, seconds: float = 10, **options: Any) -> None:
    """An ACL forbids the group or the topic for a time."""
    first, second = pair(scene, library, 20_000, **options)
    name = scene.name if of == "group" else scene.topic
    scene.run.victims = [name, "first", "second"]
    kind = ResourceType.GROUP if of == "group" else ResourceType.TOPIC
    everybody = {"principal": "User:*", "host": "*"}
    about = (kind, name, ResourcePatternType.LITERAL)
    allowed = AclBinding(*about, **everybody, operation=AclOperation.ALL, permission_type=AclPermissionType.ALLOW)
    denied = AclBinding(*about, **everybody, operation=AclOperation.READ, permission_type=AclPermissionType.DENY)
    admin = _admin(scene)
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
    for member in second, first:
        member.kill()


def loses_a_worker(scene: Scene, library: str, dies: bool, session_ms: int = 10_000) -> None:
    """Two workers of Kafka Connect, one of which is killed, or leaves as it should."""
    with TemporaryDirectory() as folder, ExitStack() as stack:

        def works(name: str) -> ConnectWorker:
            worker = ConnectWorker(name, scene.bootstrap, scene.name, Path(folder), session_ms=session_ms)
            return stack.enter_context(worker)

        first = works("first")
        scene.waits(lambda: scene.clients_now() == ["first"], "the first is not in")
        second = works("second")
        scene.waits(lambda: scene.clients_now() == ["first", "second"], "the second is not in")
        time.sleep(3)
        scene.run.session_ms, scene.run.victims = session_ms, ["second"]
        scene.now_ready()
        if dies:
            scene.did("kill -9", "second")
            second.kill()
        else:
            second.leave()
        scene.waits(lambda: scene.clients_now() == ["first"], "the first is not alone")
        time.sleep(3)
        first.leave()


def crashes_in_a_loop(
    scene: Scene, library: str, times: int = 8, lives_ms: int = 2500, session_ms: int = 45_000
) -> None:
    """A process is killed soon after each start, by which its session outlives it."""
    first = scene.joins(library, "first", session_ms=session_ms)
    scene.settles(first=4)
    scene.run.session_ms, scene.run.victims = session_ms, ["looper"]
    scene.now_ready()
    for _ in range(8):
        looper = scene.program(library, "looper", session_ms=session_ms)
        looper.send("join")
        time.sleep(lives_ms / 1000)
        scene.did("kill -9", "looper")
        looper.kill()
    time.sleep(2)
    first.kill()


def polls_late(scene: Scene, library: str, poll_ms: int = 4_000, stall_ms: int = 8_000) -> None:
    """An application needs longer between two polls than max.poll.interval.ms."""
    first = scene.joins(library, "first", session_ms=60_000)
    scene.settles(first=4)
    own = {"max_poll_interval_ms": poll_ms} if library == "aiokafka" else {}  # apart from the time to join, there
    second = scene.joins(library, "second", session_ms=poll_ms, poll_ms=poll_ms, **own)
    scene.settles(first=2, second=2)
    scene.run.session_ms, scene.run.victims = poll_ms, ["second"]
    scene.now_ready()
    with scene.doing("stall", "second"):
        second.command("stall", ms=stall_ms)
    scene.settles(first=2, second=2)
    scene.part(second, first)


def is_fenced(scene: Scene, library: str, session_ms: int = 20_000) -> None:
    """A second process comes with the group.instance.id of one that runs."""
    other = scene.joins(library, "other", session_ms=session_ms)
    one = scene.joins(library, "twin", session_ms=session_ms, static=True)
    scene.settles(other=2, twin=2)
    scene.run.session_ms, scene.run.victims = session_ms, ["twin"]
    scene.now_ready()
    scene.did("a second process with its group.instance.id", "twin")
    two = scene.joins(library, "twin", session_ms=session_ms, static=True)
    scene.waits(lambda: bool(one.complaints or two.complaints), "no process was fenced")
    time.sleep(4)
    for member in one, two, other:
        member.kill()


def subscribes_anew(scene: Scene, library: str) -> None:
    """A member subscribes to one more topic."""
    first, second = pair(scene, library, 10_000)
    scene.run.victims = ["second"]
    scene.did("subscribe to one more topic", "second")
    second.command("subscribe", topics=[scene.topic, scene.more])
    scene.settles(first=2, second=6)
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
    members = [scene.joins(library, name, session_ms=20_000) for name in names]
    scene.waits(lambda: scene.has(*names), "they are not in")
    scene.run.session_ms, scene.run.victims = 20_000, ["surplus"]
    scene.now_ready()
    scene.did("join a full group", "surplus")
    surplus = scene.joins(library, "surplus", session_ms=20_000)
    scene.waits(lambda: bool(surplus.complaints), "it was not refused")
    time.sleep(2)
    for member in [surplus, *members]:
        member.kill()


def deploys(scene: Scene, library: str, static: bool, count: int = 5, session_ms: int = 20_000) -> None:
    """All instances are restarted in order, one after the other."""
    names = [f"web-{number}" for number in range(1, count + 1)]
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
    for member in members:
        member.kill()


def sleeps_in_the_assignor(scene: Scene, library: str) -> None:
    """The leader needs five seconds to assign, in which all the others wait."""
    leader = scene.joins(library, "leader", "slow-range", session_ms=20_000)
    scene.settles(leader=4)
    scene.run.session_ms, scene.run.victims = 20_000, ["leader"]
    scene.now_ready()
    scene.did("sleep 5 s in the assignor", "leader")
    follower = scene.joins(library, "follower", "slow-range", session_ms=20_000)
    scene.settles(leader=2, follower=2)
    time.sleep(1)
    for member in follower, leader:
        member.kill()


def _admin(scene: Scene) -> AdminClient:
    """An operator's client. What it is asked for is answered as long as it is referred to."""
    return AdminClient({"bootstrap.servers": scene.bootstrap, "client.id": "operator"})


def _fill(member: Member, count: int) -> None:
    """Records in each partition, which the member reads and commits."""
    member.produce([(partition, f"{number}") for partition in range(4) for number in range(count)])


def _consume(scene: Scene, member: Member, count: int) -> None:
    scene.waits(lambda: len(member.records) >= count, "it has not read all")
    member.commit()


def resets_offsets(scene: Scene, library: str, to: int = 0) -> None:
    """An operator sets the group's offsets back, as kafka-consumer-groups.sh --reset-offsets does it."""
    first = scene.joins(library, "first")
    scene.settles(first=4)
    _fill(first, 20)
    _consume(scene, first, 80)
    first.leave()
    scene.settles()
    first.kill()
    scene.run.session_ms, scene.run.victims = 10_000, [scene.topic]
    scene.now_ready()
    with scene.doing(f"reset the offsets to {to}", scene.topic):
        wanted = [TopicPartition(scene.topic, partition, to) for partition in range(4)]
        admin = _admin(scene)
        changed = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(scene.name, wanted)])
        for done in changed.values():
            done.result(PATIENCE)
    again = scene.joins(library, "first")
    scene.settles(first=4)
    _consume(scene, again, 80 - 4 * to)
    again.leave()


def retention_resets(scene: Scene, library: str) -> None:
    """Records are deleted that the group has not read yet; auto.offset.reset moves it."""
    first = scene.joins(library, "first")
    scene.settles(first=4)
    _fill(first, 5)
    _consume(scene, first, 20)
    first.leave()
    _fill(first, 20)
    scene.run.session_ms, scene.run.victims = 10_000, [scene.topic]
    scene.now_ready()
    with scene.doing("delete records up to offset 15", scene.topic):
        admin = _admin(scene)
        gone = admin.delete_records([TopicPartition(scene.topic, partition, 15) for partition in range(4)])
        for done in gone.values():
            done.result(PATIENCE)
    first.kill()
    again = scene.joins(library, "first")
    scene.settles(first=4)
    _consume(scene, again, 40)
    again.leave()


def serves_two_applications(scene: Scene, library: str) -> None:
    """Another application, with another topic, uses the group's name."""
    one = scene.joins(library, "billing-1")
    two = scene.joins(library, "billing-2")
    scene.settles(**{"billing-1": 2, "billing-2": 2})
    scene.run.session_ms, scene.run.victims = 10_000, ["audit-1"]
    scene.now_ready()
    scene.did("join with another topic", "audit-1")
    audit = scene.joins(library, "audit-1", topic=scene.more)
    scene.waits(lambda: scene.described()[1] == {"billing-1": 2, "billing-2": 2, "audit-1": 4}, "it is not in")
    time.sleep(10)
    for member in audit, two, one:
        member.kill()


def is_deleted_and_formed_again(scene: Scene, library: str) -> None:
    """An operator deletes the empty group, and its members come back."""
    first, second = pair(scene, library, 10_000)
    scene.part(second, first)
    scene.run.victims = [scene.name]
    with scene.doing("delete the group", scene.name):
        admin = _admin(scene)
        for done in admin.delete_consumer_groups([scene.name]).values():
            done.result(PATIENCE)
    for member in first, second:
        member.kill()
    first = scene.joins(library, "first")
    second = scene.joins(library, "second")
    scene.settles(first=2, second=2)
    scene.part(second, first)


def _watch_ends(scene: Scene, seconds: float) -> None:
    """Ask for the ends of the partitions once a second, as a lag exporter does."""
    admin = _admin(scene)
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
    scene.run.victims = ["second", *(f"{scene.topic}-{partition}" for partition in paused)]
    with scene.doing(f"pause {count} of its 2 partitions", "second"):
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
    scene.run.victims = ["second", *(f"{scene.topic}-{partition}" for partition in second.now_owned)]
    with scene.doing("commit no more", "second"):
        for _ in range(10):
            _fill(first, 5)
            time.sleep(seconds / 10)
            first.commit()
    scene.part(second, first)


def speaks_tls(scene: Scene, library: str) -> None:
    """A client that speaks TLS to the plain port."""
    scene.run.victims = ["secure"]
    with scene.doing("TLS to a plain port", "secure"):
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
    with scene.doing("ApiVersions version 9", "future"):
        for _ in range(times):
            with Wire(scene.bootstrap, client_id="future") as wire:
                wire.send_raw(kw.frame(body[:2] + UNKNOWN_VERSION.to_bytes(2, "big") + body[4:]))
                wire.receive_body()
            time.sleep(0.1)
