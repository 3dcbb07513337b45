"""Pools of dropped messages and the deallocator that fills them (`_speedups/objects/pools.h`).

A fault here is a crash, or memory that two objects share: each script runs in a process of its own, with CPython's own
allocator and with its debugging one, which fills freed memory and checks what lies around each block.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest

import kcoord_wire as kw
from tests.support.backends import BACKENDS

NATIVE = "native" in BACKENDS
POOLED = pytest.mark.skipif(
    not NATIVE or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="there are pools in the native core with a GIL",
)
START = """
import copy, gc, os, pickle, sys, threading, tracemalloc, weakref
import kcoord_wire as kw
from kcoord_wire import JoinGroupResponse as Root, JoinGroupResponseMember as Member

MESSAGE = Root(
    leader="leader",
    members=[Member(member_id=f"member-{i}", group_instance_id="x" * i, metadata=b"d" * i) for i in range(100)],
)
DATA = kw.encode(MESSAGE, 7)
SHORT = kw.encode(Root(members=MESSAGE.members[2:5]), 7)

class Canary:
    pass

def read():
    return kw.decode(Root, DATA, 7)

def counts(*objects):
    return [sys.getrefcount(each) for each in objects]

def gone(make):
    "Whether an object is freed that make() got and did not return."
    canary = Canary()
    alive = weakref.ref(canary)
    make(canary)
    del canary
    gc.collect()
    return alive() is None

for _ in range(3):
    read()
assert kw.trim() > 100 * Member.__basicsize__
read()
"""
END = """
for _ in range(3):
    assert read() == MESSAGE
gc.collect()
assert kw.trim() > 0
assert kw.trim() == 0
"""
SCRIPTS = {
    "an instance is like any other": """
        first = read()
        assert sys.getrefcount(first) == 2 and sys.getrefcount(first.members[7]) == 2
        assert [type(each) for each in first.members] == [Member] * 100
        for _ in range(50):
            kept, again = first.members[5::10], read()
            kept[0].member_id, again.members[3].metadata = "changed", again.members[90].metadata
            again.members.append(again.members[0]); again.members.sort(key=lambda each: each.member_id); del again
            assert [each.member_id for each in kept[1:]] == [f"member-{i}" for i in range(15, 100, 10)]
        second = read()
        assert first != second and MESSAGE == second
    """,
    "copies": """
        for _ in range(20):
            whole = read()
            assert copy.copy(whole) == copy.deepcopy(whole) == pickle.loads(pickle.dumps(whole)) == MESSAGE
            assert [copy.copy(each) for each in whole.members] == MESSAGE.members
    """,
    "references to classes": """
        class Sub(Root):
            __slots__ = ()
        before = counts(Root, Member, Sub)
        for _ in range(1000):
            read(); Root(); Member(); Sub(); copy.copy(read())
            try:
                kw.decode(Root, DATA[:-30], 7)
            except kw.DecodeError:
                pass
        assert counts(Root, Member, Sub) == before
    """,
    "subclasses": """
        class Dict(Member):
            pass
        class Slot(Dict):
            __slots__ = ("more", "__weakref__") if not hasattr(Dict, "__weakref__") else ("more",)
        class Weak(Member):
            __slots__ = ("__weakref__",)
        deleted = []
        class Del(Weak):
            __slots__ = ()
            def __del__(self):
                deleted.append(self.member_id)
        for cls in (Dict, Slot, Weak, Del):
            def make(canary, cls=cls):
                each = cls(member_id="a" * 40, metadata=b"b" * 40, group_instance_id=canary)
                if cls is not Weak and cls is not Del:
                    each.more = [canary, each]
                return weakref.ref(each)
            for _ in range(200):
                assert read().members[99].group_instance_id == "x" * 99
                assert gone(make)
        assert deleted == ["a" * 40] * 200
    """,
    "__del__ that resurrects": """
        kept = []
        class Phoenix(Member):
            def __del__(self):
                kept.append(self)
        Phoenix(member_id="once")
        read(); read()
        assert kept.pop().member_id == "once" and not kept
        # A class that gets one later; the mark that it has run must not go to the next instance in the same memory.
        for _ in range(3):
            Member.__del__ = lambda self: kept.append(self)
            read()
            assert len(kept) == 100 and sorted(each.metadata for each in kept) == [b"d" * i for i in range(100)]
            gc.collect()
            del Member.__del__
            kept.clear()
            Member.__del__ = lambda self: kept.append(self.member_id)
            read()
            assert len(kept) == 100
            del Member.__del__
            kept.clear()
    """,
    "__del__ that changes the class": """
        class Twin:
            __slots__ = Member.__slots__
        def change(self):
            self.__class__ = Twin
        Member.__del__ = change
        before = counts(Twin, Member)
        assert gone(lambda canary: Member(metadata=canary) and None)
        read()
        del Member.__del__
        each = Member(); each.__class__ = Twin; del each
        each = Twin(); each.__class__ = Member; each.member_id = [each]; del each
        gc.collect()
        assert counts(Twin, Member) == before
    """,
    "__del__ of a subclass that changes the class": """
        class Twin:
            __slots__ = Member.__slots__
        class TwinSub(Twin):
            __slots__ = ()
        class Sub(Member):
            __slots__ = ()
            def __del__(self):
                self.__class__ = target
        before = counts(Sub, Twin, TwinSub, Member)
        for target in (Twin, TwinSub, Member):
            for _ in range(200):
                assert gone(lambda canary: Sub(metadata=canary, member_id="a" * 40) and None)
                read()
        del target
        gc.collect()
        assert counts(Sub, Twin, TwinSub, Member) == before
    """,
    "a subclass's instance is not kept": """
        class Empty(Member):
            __slots__ = ()
        class Dict(Member):
            pass
        class Weak(Member):
            __slots__ = ("__weakref__",)
        for cls, kept in ((Member, True), (Empty, False), (Dict, False), (Weak, False)):
            cls()
            kw.trim()
            cls()
            assert bool(kw.trim()) == kept
        read()
    """,
    "cycles": """
        def by_list(canary):
            whole = read(); whole.members += [whole, canary]
        def by_leaf(canary):
            leaf = Member(); leaf.metadata = [leaf, canary]
        def by_dict(canary):
            whole = read(); whole.leader = {"self": whole, "canary": canary}
        for _ in range(50):
            assert gone(by_list) and gone(by_leaf) and gone(by_dict)
    """,
    "deep chains": """
        def lists():
            chain = Root()
            for _ in range(200_000):
                chain = Root(members=[chain])
        def slots():
            chain = Member()
            for _ in range(200_000):
                chain = Member(metadata=chain)
        class Sub(Member):
            pass
        def subclasses():
            chain = Sub()
            for i in range(200_000):
                chain = (Sub, Member)[i % 2](metadata=chain)
        for work in (lists, slots, subclasses):
            before = counts(Member, Sub)
            thread = threading.Thread(target=work); thread.start(); thread.join()
            assert counts(Member, Sub) == before
    """,
    "what the collector sees": """
        whole = read()
        del whole
        assert not [each for each in gc.get_objects() if type(each) in (Root, Member) and each is not MESSAGE
                    and each not in MESSAGE.members]
        assert not [each for each in gc.get_referrers(Member) if type(each) is Member and each not in MESSAGE.members]
        gc.collect()
    """,
    "classes that die": """
        from dataclasses import make_dataclass
        from kcoord_wire._native import Program
        codec = kw.registry["JoinGroupResponse"]
        def turn():
            classes = {name: make_dataclass(name, cls.__slots__, slots=True) for name, cls in codec.classes.items()}
            program = Program(codec.plan(7), classes)
            whole = program.decode(DATA)
            assert type(whole) is classes["JoinGroupResponse"] and program.encode(whole) == DATA
            return [weakref.ref(cls) for cls in classes.values()]
        gc.collect()
        for _ in range(30):
            alive = turn()
            gc.collect()
            assert alive and not any(each() for each in alive)
            assert read() == MESSAGE, "in the memory that the dead classes' instances had"
            turn()
    """,
    "Python code while a message is dropped": """
        class Reads:
            def __del__(self):
                assert read() == MESSAGE
                kw.trim()
                read()
                gc.collect()
        for _ in range(20):
            whole = read()
            whole.members[3].metadata = Reads()
            whole.leader = [Reads(), whole.members[5]]
            whole.members[9].member_id = read()
            del whole
            assert gone(lambda canary: setattr(read(), "leader", canary))
    """,
    "messages that are dropped half-way": """
        deleted = []
        class Foreign:
            def __init__(self, number):
                self.number = number
            def __del__(self):
                assert read() == MESSAGE
                gc.collect()
                deleted.append(self.number)
        def nested(depth, value):
            for turn in range(depth):
                struct = Member(member_id="a" * 40, metadata=value if turn % 2 else b"b" * 40)
                inner = ["c" * 40, struct if turn % 2 else value, Member(member_id="d" * 40), f"string {turn:02}"]
                value = Root(leader=["e" * 40], members=inner, protocol_name="f" * 40)
            return value
        before = counts(Root, Member)
        for depth in range(25):
            for at in ("leader", "members", "protocol_type", "unknown_tags"):
                nested(depth, Root(**{at: [Foreign(1), Foreign(2)]}))
                assert deleted == [2, 1], "each once, the last item of a list first"
                deleted.clear()
                assert gone(lambda canary: nested(depth, canary) and None)
        # One that has a __del__ by now is whole when that runs, wherever the message is that holds it.
        Member.__del__ = lambda self: deleted.append((self.member_id, type(self.metadata)))
        for depth in range(25):
            nested(depth, Member(member_id=["g" * 40], metadata=b"h" * 40))
            assert deleted.count((["g" * 40], bytes)) == 1 and len(deleted) == 1 + 2 * depth
            assert deleted.count(("a" * 40, Root)) == depth // 2
            deleted.clear()
        del Member.__del__
        gc.collect()
        assert counts(Root, Member) == before
    """,
    "views of bytes": """
        class Bytes(bytes): pass
        called = []
        def released():
            view = memoryview(bytes(data))
            view.release()
            return view
        makers = [
            released,
            lambda: memoryview(data),
            lambda: memoryview(memoryview(data)[3:]),
            lambda: memoryview(bytearray(data)),
            lambda: memoryview(Bytes(data)),
            lambda: memoryview(b""),
        ]
        data = b"data" * 999
        held = sys.getrefcount(data)
        for _ in range(50):
            for make in makers:
                value = make()
                Member(metadata=[value], member_id=value)
                watched = weakref.ref(value, lambda reference: called.append(read()))
                message = Member(metadata=value)
                del value, message
                assert watched() is None and called.pop() == MESSAGE and not called
                Member(metadata=make(), member_id=["a" * 40, make()])
                assert sys.getrefcount(data) == held
        fetched = kw.encode(Root(members=[Member(member_id="m", metadata=data)] * 9), 7)
        for _ in range(9):
            views = kw.decode(Root, fetched, 7, bytes="view")
            assert [bytes(each.metadata) for each in views.members] == [data] * 9
            kept = views.members[4].metadata
            del views
            assert bytes(kept) == data
    """,
    "damaged inputs": """
        damaged = [DATA[:size] for size in range(0, len(DATA), 7)]
        damaged += [DATA[:at] + byte + DATA[at + 1:] for at in range(0, 600) for byte in (b"\\0", b"\\x80", b"\\xff")]
        def turn():
            for data in damaged:
                try:
                    kw.decode(Root, data, 7)
                except kw.DecodeError:
                    pass
            gc.collect()
            kw.trim()
            return sys.getallocatedblocks()
        turn()
        before = turn()
        assert max(turn() for _ in range(4)) - before < 20
        read()
    """,
    "traces of memory": """
        def other():
            return kw.decode(Root, DATA, 7)
        kw.trim()
        tracemalloc.start()
        del read().leader
        for make in (read, other, read):
            whole = make()
            lines = {tracemalloc.get_object_traceback(each)[0].lineno for each in (whole, *whole.members)}
            assert lines == {make.__code__.co_firstlineno + 1}, "memory from a pool is traced to who has it now"
        del whole
        tracemalloc.stop()
        read()
        tracemalloc.start()
        read()
        tracemalloc.stop()
    """,
    "contents that are kept": """
        import itertools
        pattern = itertools.cycle(range(1, 9))
        kept = []
        for turn in range(60):
            whole = read()
            for each in whole.members[turn % 7 :: next(pattern)]:
                kept.append((each.member_id, each.group_instance_id, each.metadata, str(each.member_id).encode()))
            lists = whole.members, whole.members[turn : turn + 9], iter(whole.members)
            del whole
            kept.append(lists)
            if turn % 9 == 8:
                for each in kept:
                    if len(each) == 4:
                        i = int(each[0][7:])
                        assert each == (f"member-{i}", "x" * i, b"d" * i, b"member-%d" % i)
                    else:
                        assert each[0] == MESSAGE.members and list(each[2]) == MESSAGE.members
                kept.clear()
    """,
    "hashes": """
        other = Root(leader="LEADER", members=[
            Member(member_id=f"MEMBER-{i}", group_instance_id="y" * i, metadata=b"e" * i) for i in range(100)])
        data = kw.encode(other, 7)
        for turn in range(20):
            message, wire = [(MESSAGE, DATA), (other, data)][turn % 2]
            whole = kw.decode(Root, wire, 7)
            for each, expected in zip(whole.members, message.members):
                for attr in ("member_id", "group_instance_id", "metadata"):
                    assert hash(getattr(each, attr)) == hash(getattr(expected, attr))
            assert {each.member_id: i for i, each in enumerate(whole.members)} == {
                each.member_id: i for i, each in enumerate(message.members)}
    """,
    "interned strings": """
        for turn in range(20):
            whole = read()
            for each in whole.members:
                each.member_id = sys.intern(each.member_id)
            vars(Canary)
            setattr(Canary, whole.members[turn].member_id, turn)
            del whole, each
            read()
            assert sys.intern(f"member-{turn}") == f"member-{turn}" and getattr(Canary, f"member-{turn}") == turn
            assert [sys.intern(each.member_id) for each in MESSAGE.members] == [f"member-{i}" for i in range(100)]
    """,
    "contents of other kinds": """
        class Str(str): pass
        class Bytes(bytes): pass
        class Int(int): pass
        class List(list): pass
        def values():
            yield from ("", "a", "\xe9" * 40, "\u20ac" * 40, "\U0001f600" * 40, "z" * 300, Str("s" * 40))
            yield from (b"", b"a", b"b" * 300, Bytes(b"c" * 40), bytearray(b"d" * 40), None, True, 1.5)
            yield from (-1, 0, 255, 2047, 2048, -5000, 1 << 29, 1 << 30, -(1 << 40), (1 << 60) - 1, 1 << 60, 1 << 90)
            yield from (Int(5000), List([1]), [], [1] * 16, [1] * 17, [1] * 1000, [[["deep"]]], (1, "t" * 40))
        chain = []
        for _ in range(100_000):
            chain = [chain]
        Member(metadata=chain)
        del chain
        for _ in range(30):
            for value in values():
                message = Member(member_id=value, group_instance_id=[value, value], metadata=[value])
                assert message.metadata[0] is value
                del message
            del value
            read()
        expected = list(map(repr, values()))
        for _ in range(9):
            Member(member_id=[f"{i:040}" for i in range(16)], metadata=[b"%040d" % i for i in range(16)])
            assert list(map(repr, values())) == expected
    """,
    "lists": """
        for turn in range(200):
            whole = read()
            whole.leader = [each.member_id for each in whole.members[: turn % 20]]
            whole.protocol_name = whole.leader[:]
            whole.protocol_name.append("x" * 9)
            kept = whole.protocol_name if turn % 3 else None
            whole.protocol_type = []
            whole.members[1].metadata = [whole.members[2], whole.members[3]]
            del whole
            short = kw.decode(Root, SHORT, 7)
            assert len(short.members) == 3 and short.members == MESSAGE.members[2:5]
            short.members.extend(short.members * 5)
            short.members.clear()
            assert kept is None or kept[-1] == "x" * 9 and kept[:-1] == [f"member-{i}" for i in range(turn % 20)]
    """,
    "numbers": """
        def numbers(low):
            return [low, low + 1, 2047, 2048, 2**29, 2**30 - 1, 2**30, 2**31, 2**45, 2**60 - 1, 2**60, 2**63 - 1,
                    -1, -5, -6, 0, 256, 257, 2042, 2043]
        Response, Topic = kw.OffsetFetchResponse, kw.messages.OffsetFetchResponseTopic
        Partition = kw.messages.OffsetFetchResponsePartition
        def wire(low):
            return kw.encode(Response(topics=[Topic(name="t", partitions=[
                Partition(partition_index=i, committed_offset=n) for i, n in enumerate(numbers(low))])]), 5)
        one, two = wire(3000), wire(2**40)
        kept = []
        for turn in range(100):
            low, data = [(3000, one), (2**40, two)][turn % 2]
            found = [each.committed_offset for each in kw.decode(Response, data, 5).topics[0].partitions]
            assert found == numbers(low) and [n + 1 - 1 for n in found] == numbers(low)
            kept.append(found[turn % 5 :: 3])
            assert all(each == numbers([3000, 2**40][i % 2])[i % 5 :: 3] for i, each in enumerate(kept))
        assert all(n is m for n, m in zip(found, numbers(low)) if -5 <= n <= 256)
    """,
    "traffic that changes": """
        short = Root(leader="L" * 200)
        data = kw.encode(short, 7)
        for _ in range(300):
            read()
        while kw.trim():
            pass
        big = kw.encode(Root(members=MESSAGE.members * 3000), 7)
        for _ in range(3):
            assert len(kw.decode(Root, big, 7).members) == 300_000
        for _ in range(1000):
            assert kw.decode(Root, data, 7).leader == "L" * 200
        assert len(kw.decode(Root, big, 7).members) == 300_000
    """,
    "threads": """
        def work():
            for turn in range(300):
                whole = read()
                assert whole == MESSAGE
                if turn % 50 == 0:
                    kw.trim()
        threads = [threading.Thread(target=work) for _ in range(4)]
        sys.setswitchinterval(1e-5)
        for each in threads: each.start()
        for each in threads: each.join()
    """,
    "fork": """
        kept = read()
        child = os.fork() if hasattr(os, "fork") else 0
        if child == 0 and hasattr(os, "fork"):
            for _ in range(100):
                assert read() == MESSAGE == kept
            del kept
            os._exit(0 if kw.trim() > 0 else 1)
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        del kept
    """,
}


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "KCOORD_WIRE_POOL_BYTES"}
    return subprocess.run(
        [sys.executable, "-P", "-X", "faulthandler", "-c", script],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def dedented(script: str, indent: int = 8) -> str:
    lines = script.splitlines()
    assert all(line[:indent].isspace() for line in lines if line)
    return "\n".join(line[indent:] for line in lines)


@POOLED
@pytest.mark.parametrize("allocator", ["default", "debug"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_pooled(name: str, allocator: str) -> None:
    if "LD_PRELOAD" in os.environ:
        allocator = "malloc"  # the address sanitizer's
    done = run(START + dedented(SCRIPTS[name]) + END, PYTHONMALLOC=allocator, KCOORD_WIRE_POOL_BYTES=str(8 << 20))
    assert (done.returncode, done.stderr) == (0, "")


SIZES = """
import kcoord_wire as kw
from kcoord_wire import JoinGroupResponse as Root, JoinGroupResponseMember as Member

def wire(members, byte=b"x", size=100):
    return kw.encode(Root(members=[Member(metadata=byte * size) for _ in range(members)]), 7)

def read(data, times=1):
    for _ in range(times):
        kw.decode(Root, data, 7)

def keep(data, count):
    kept = [kw.decode(Root, data, 7) for _ in range(count)]
    kept.clear()

SMALL, LARGE, HUGE = wire(1), wire(3000), wire(100_000)
"""
KEEP = SIZES + "read(LARGE, 3)\nprint(kw.trim(), kw.trim())"
MADE = 3000 * (100 + 100)  # bytes of the members of LARGE, at least: an instance, a bytes object


def printed(script: str, **environment: str) -> list[int]:
    done = run(SIZES + script, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return [int(word) for word in done.stdout.split()]


@POOLED
@pytest.mark.parametrize("limit", [0, 4096, 1 << 20])
def test_the_bound_holds(limit: int) -> None:
    """Messages whose contents have other sizes, each of them smaller than the bound, together larger than any."""
    script = """
    for _ in range(9):
        for size in range(20, 250, 5):
            read(wire(limit // 1024, size=size))
    print(kw.trim(), kw.trim())
    """
    kept, left = printed(f"limit = {limit}\n" + dedented(script, 4), KCOORD_WIRE_POOL_BYTES=str(limit))
    one = 1 << 10  # the object that reaches the bound is still kept
    assert limit <= kept <= limit + one * bool(limit)
    assert left == 0


@POOLED
def test_large_messages_earn_their_room() -> None:
    script = """
    read(SMALL, 50)
    print(kw.trim())
    read(SMALL)
    read(LARGE, 2)
    for _ in range(3):
        print(kw.trim())
        read(LARGE, 2)
    keep(LARGE, 2)
    keep(LARGE, 2)
    read(SMALL)
    print(kw.trim())
    """
    small, *large, two = printed(dedented(script, 4), KCOORD_WIRE_POOL_BYTES=str(4 << 20))
    assert 0 < small < 1024
    assert large[0] > MADE, "the second message was kept"
    assert max(large) - min(large) <= 1024, "no more than one takes, however many are read"
    assert two > 2 * MADE


@POOLED
@pytest.mark.parametrize("bulk", ["keep(LARGE, 20)", "read(HUGE)"])
def test_what_is_dropped_together_is_freed_together(bulk: str) -> None:
    script = f"""
    read(LARGE, 3)
    {bulk}
    read(SMALL)
    print(kw.trim())
    for _ in range(5):
        {bulk}
    read(SMALL)
    print(kw.trim())
    read(LARGE, 3)
    print(kw.trim())
    """
    once, often, again = printed(dedented(script, 4), KCOORD_WIRE_POOL_BYTES=str(4 << 20))
    assert (once, often) == (0, 0)
    assert again > MADE


@POOLED
def test_instances_made_and_dropped_without_reading_are_freed() -> None:
    script = """
    for _ in range(9):
        [Member(member_id=str(i)) for i in range(1000)]
    print(kw.trim())
    """
    assert printed(dedented(script, 4), KCOORD_WIRE_POOL_BYTES=str(4 << 20)) == [0]


@POOLED
def test_room_is_earned_by_what_was_missed_not_by_drops_alone() -> None:
    """What is made by hand and dropped is refused, but the messages that are read between miss less than it."""
    script = """
    for _ in range(9):
        [Member(member_id=str(i)) for i in range(1000)]
        read(SMALL)
    print(kw.trim())
    """
    [kept] = printed(dedented(script, 4), KCOORD_WIRE_POOL_BYTES=str(4 << 20))
    assert kept < 9 * 1024, "at most what nine small messages missed"


@pytest.mark.skipif(not NATIVE, reason="the pure codec keeps nothing")
@pytest.mark.parametrize(("limit", "least"), [("", 9_000), ("10000", 9_000), ("9000", 0), ("0", 0)])
def test_the_block_of_encode_into_obeys_the_bound(limit: str, least: int) -> None:
    script = """
    message, buffer = kw.OffsetCommitRequest(group_id="g" * 9_000), bytearray()
    for _ in range(3):
        kw.encode_into(message, 8, buffer)
    print(kw.trim())
    """
    (kept,) = printed(dedented(script, 4), KCOORD_WIRE_POOL_BYTES=limit)
    assert (kept > least) if least else kept == 0


@POOLED
@pytest.mark.parametrize(("allocator", "kept"), [("pymalloc", True), ("debug", False), ("malloc", False)])
def test_memory_debuggers_see_each_free(allocator: str, kept: bool) -> None:
    if "LD_PRELOAD" in os.environ or hasattr(sys, "gettotalrefcount"):
        kept = False
    assert (int(run(KEEP, PYTHONMALLOC=allocator).stdout.split()[0]) > 0) == kept


@pytest.mark.skipif(not NATIVE, reason="the pure codec was asked for")
@pytest.mark.parametrize("wrong", ["8M", "-1", "1e6", str(sys.maxsize + 1)])
def test_a_wrong_bound_is_refused(wrong: str) -> None:
    done = run("import kcoord_wire", KCOORD_WIRE_POOL_BYTES=wrong, KCOORD_WIRE_BACKEND="native")
    assert "ImportError: KCOORD_WIRE_POOL_BYTES is a number of bytes" in done.stderr


def test_the_pure_codec_keeps_nothing() -> None:
    assert run(KEEP, KCOORD_WIRE_BACKEND="python").stdout == "0 0\n"


def test_trim_says_what_it_gave_back() -> None:
    kw.decode(kw.HeartbeatRequest, kw.encode(kw.HeartbeatRequest(), 4), 4)
    assert kw.trim() >= 0
    assert kw.trim() == 0
