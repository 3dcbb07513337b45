"""Lazy messages: what their arrays are, when elements are made, and that nothing else differs from `decode`.

Each test runs with both codecs. `fuzz.lazy.check_lazy` compares a lazy message with the decoded one element by element.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import random
import tracemalloc
import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from fuzz.lazy import check_lazy, long_arrays, widened
from kcoord_wire.codec.backend import Program, ProgramClass
from kcoord_wire.codec.lazy import LAZY_ARRAYS, LEAST
from kcoord_wire.codec.registry import MessageCodec, compile_schemas, make_classes, registry
from kcoord_wire.schema.plan import compile_plan
from kcoord_wire.schema.reader import read_message
from tests.support.each import each
from tests.support.golden import DATA, vectors
from tests.support.hostile_bytes import HOSTILE, bombs
from tests.support.strategies import filled, messages

EVERYTHING = compile_schemas(DATA / "parity")
CODECS = [*(codec for codec in registry.values() if codec.schema.encoding == "binary"), *EVERYTHING.values()]
SAMPLE = 6  # prefixes, and changed bytes, of each vector


def program(program_class: ProgramClass, codec: MessageCodec, version: int) -> Program:
    return program_class(codec.plan(version), codec.classes)


def is_native(program_class: ProgramClass) -> bool:
    return getattr(program_class, "__module__", "") == "kcoord_wire._native"


def response(members: int) -> kw.JoinGroupResponse:
    return kw.JoinGroupResponse(
        generation_id=3,
        protocol_name="range",
        leader="member-0",
        member_id="member-1",
        members=[
            kw.JoinGroupResponseMember(member_id=f"member-{i}", group_instance_id=None, metadata=b"\0" * (i % 5))
            for i in range(members)
        ],
    )


@pytest.fixture
def joined(program_class: ProgramClass) -> Any:
    """A lazy response with 100 members."""
    return lazily(program_class, response(100), 7)


def lazily(program_class: ProgramClass, message: object, version: int) -> Any:
    codec = registry.by_class(type(message))
    return program(program_class, codec, version).decode(codec.encode(message, version), lazy=True)


# ---- parity with decode


def worn(data: bytes, rng: random.Random, sample: int = SAMPLE) -> Iterator[bytes]:
    """The bytes, some of their prefixes, and some copies with one byte changed or more behind."""
    yield data
    yield data + b"\0\xff"
    for at in sorted(rng.sample(range(len(data)), min(sample, len(data)))):
        yield data[:at]
        yield data[:at] + bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))]) + data[at + 1 :]


@pytest.mark.parametrize("name", vectors())
def test_golden_vectors_and_what_is_left_of_them(program_class: ProgramClass, name: str) -> None:
    rng = random.Random(name)
    # Each version costs the pure codec the compilation of its source, and its arrays wrap what decode returns.
    for vector in vectors()[name] if is_native(program_class) else vectors()[name][-1:]:
        reads = program(program_class, registry[name], vector.version)
        for data in worn(vector.data, rng):
            for strict in (True, False):
                check_lazy(reads, data, strict)


@each("codec", CODECS)
def test_every_version_with_long_arrays_at_each_level(program_class: ProgramClass, codec: MessageCodec) -> None:
    rng = random.Random(codec.name)
    for version in codec.valid_versions if is_native(program_class) else codec.valid_versions[-1:]:
        reads = program(program_class, codec, version)
        for level in range(3):
            try:
                data = codec.encode(widened(filled(codec, version), level), version)
            except kw.EncodeError:
                continue  # more than this version can carry
            assert check_lazy(reads, data, True) is not None
            for damaged in worn(data, rng, 2):
                for strict in (True, False):
                    check_lazy(reads, damaged, strict)


@given(data=st.data())
def test_any_message_read_in_any_order(program_class: ProgramClass, data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from([codec for codec in CODECS if "[]" in codec.schema.source]))
    version = codec.valid_versions[-1]
    message = widened(data.draw(messages(codec, version)), data.draw(st.integers(0, 2)))
    body = codec.encode(message, version)
    reads = program(program_class, codec, version)
    full = reads.decode(body)
    lazy = reads.decode(body, lazy=True)
    for name in type(lazy).__slots__:
        array, plain = getattr(lazy, name), getattr(full, name)
        if type(array) in LAZY_ARRAYS:
            assert len(array) == len(plain) >= LEAST
            orders = st.lists(st.integers(-len(plain), len(plain) - 1), max_size=9)
            kept = [(index, array[index]) for index in data.draw(orders)]
            for index, element in kept:
                assert element == plain[index]
                assert array[index] is element
            assert reads.encode(lazy) == body
            part = data.draw(st.slices(len(plain)))
            assert array[part] == plain[part]
    assert check_lazy(reads, body, True) == full


@each("case, name, version, body", [case[:4] for case in HOSTILE])
def test_hostile_bodies_are_refused_as_by_decode(
    program_class: ProgramClass, case: str, name: str, version: int, body: bytes
) -> None:
    reads = program(program_class, registry[name], version)
    assert check_lazy(reads, body, True) is None
    check_lazy(reads, body, False)


def test_lenient_elements_are_what_decode_returns(program_class: ProgramClass) -> None:
    reads = program(program_class, registry["JoinGroupResponse"], 7)
    start = kw.encode(response(0), 7)[:-2]
    for member in (
        b"\0\0\1\0",  # null where no null may be
        b"\2\xff\0\1\0",  # no UTF-8
        b"\x82\0g\0\1\0",  # a varint with a byte too many
        b"\2g\0\1\2\5\0\4\0",  # tags out of order
    ):
        body = start + b"\x15" + 19 * b"\2m\0\1\0" + member + b"\0"
        with pytest.raises(kw.DecodeError) as caught:
            reads.decode(body, lazy=True)
        assert caught.value.path.startswith("JoinGroupResponse.members[19]")
        lazy = check_lazy(reads, body, False)
        assert type(lazy.members) in LAZY_ARRAYS


# ---- the array


def test_only_a_long_array_of_structs_is_lazy(program_class: ProgramClass) -> None:
    assert type(lazily(program_class, response(LEAST - 1), 7).members) is list
    lazy = lazily(program_class, response(LEAST), 7)
    assert type(lazy) is kw.JoinGroupResponse
    assert type(lazy.members) in LAZY_ARRAYS
    assert {type(member) for member in lazy.members} == {kw.JoinGroupResponseMember}
    subscription = lazily(program_class, kw.ConsumerProtocolSubscription(topics=[f"t{i}" for i in range(40)]), 1)
    assert type(subscription.topics) is list
    topic = kw.OffsetFetchRequestTopics(name="orders", partition_indexes=list(range(50)))
    group = kw.OffsetFetchRequestGroup(group_id="g", topics=[topic] * LEAST)
    within = lazily(program_class, kw.OffsetFetchRequest(groups=[group]), 8)
    assert type(within.groups) is list
    assert type(within.groups[0].topics) in LAZY_ARRAYS
    assert type(within.groups[0].topics[0].partition_indexes) is list
    every = lazily(program_class, kw.OffsetFetchRequest(groups=[group] * LEAST), 8)
    assert type(every.groups) in LAZY_ARRAYS
    assert type(every.groups[0].topics) is list, "made with its element"


def test_an_array_is_a_sequence_equal_to_the_list(joined: Any) -> None:
    members, listed = joined.members, response(100).members
    assert isinstance(members, Sequence)
    assert not isinstance(members, list)
    assert members == listed
    assert listed == members
    assert members == copy.copy(joined).members
    assert members != listed[:-1]
    assert members != [*listed[:-1], listed[0]]
    assert members != tuple(listed)
    assert listed[40] in members
    assert members.index(listed[99]) == 99
    assert members.count(listed[3]) == 1
    assert list(reversed(members)) == listed[::-1]
    assert repr(members) == repr(listed)
    assert bool(members)
    for index in (100, -101, 2**70):
        with pytest.raises(IndexError):
            members[index]
    with pytest.raises(TypeError):
        members["0"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(members)


@pytest.mark.parametrize(
    "part",
    [slice(None), slice(3, 50), slice(-7, None), slice(None, None, 7), slice(90, 5, -9), slice(50, 3), slice(2**70)],
)
def test_a_slice_of_an_array_is_a_list_of_its_elements(joined: Any, part: slice) -> None:
    taken = joined.members[part]
    assert type(taken) is list
    assert taken == response(100).members[part]
    for index, element in zip(range(100)[part], taken, strict=True):
        assert joined.members[index] is element


def test_an_element_is_made_once_and_can_be_changed(program_class: ProgramClass, joined: Any) -> None:
    reads = program(program_class, registry["JoinGroupResponse"], 7)
    changed = response(100)
    changed.members[17].member_id = joined.members[17].member_id = "changed"
    changed.members[17].unknown_tags = joined.members[17].unknown_tags = ((3, b"x"),)
    assert joined.members[17] is joined.members[-83] is next(iter(joined.members[17:]))
    assert [member.member_id for member in joined.members][17] == "changed"
    assert joined == changed
    assert reads.encode(joined) == reads.encode(changed)
    assert reads.decode(reads.encode(joined), lazy=True) == changed
    joined.members[18].metadata = 7
    with pytest.raises(kw.EncodeError) as caught:
        reads.encode(joined)
    assert (caught.value.kind, caught.value.path) == ("type", "JoinGroupResponse.members[18].metadata")


def test_every_backend_writes_a_lazy_message(joined: Any) -> None:
    for version in (6, 7, 9):
        assert kw.encode(joined, version) == kw.encode(response(100), version)


def test_an_array_cannot_be_changed_but_replaced(program_class: ProgramClass, joined: Any) -> None:
    first = joined.members[0]
    with pytest.raises(TypeError, match="assignment"):
        joined.members[0] = first
    with pytest.raises(TypeError, match="deletion"):
        del joined.members[0]
    with pytest.raises(AttributeError):
        joined.members.append(first)
    joined.members = [first]
    assert joined == dataclasses.replace(response(1))
    joined.members.append(first)
    assert len(program(program_class, registry["JoinGroupResponse"], 7).encode(joined)) > 0


def test_copies_and_pickles(joined: Any) -> None:
    assert copy.copy(joined).members is joined.members
    assert dataclasses.replace(joined, leader="").members is joined.members
    for again in (copy.deepcopy(joined), pickle.loads(pickle.dumps(joined))):
        assert type(again) is kw.JoinGroupResponse
        assert type(again.members) is list
        assert again == joined == response(100)
    shallow = copy.copy(joined.members)
    assert type(shallow) is list
    assert all(a is b for a, b in zip(shallow, joined.members, strict=True))
    again = pickle.loads(pickle.dumps((joined, joined.members)))
    assert again[0].members is again[1]


def test_what_takes_messages_takes_lazy_ones(joined: Any) -> None:
    message = response(100)
    assert (joined, message) == (message, joined)
    assert repr(joined) == repr(message)
    assert kw.to_dict(joined) == kw.to_dict(message)
    assert kw.to_dict(joined, 7, json=True) == kw.to_dict(message, 7, json=True)
    assert dataclasses.asdict(joined)["members"] == message.members, "of messages: it looks into lists alone"
    match joined:
        case kw.JoinGroupResponse(generation_id=generation, members=[first, *rest]):
            assert (generation, first.member_id, len(rest)) == (3, "member-0", 99)
        case _:
            pytest.fail("no match")
    message.members[-1].metadata = b"other"
    assert joined != message


# ---- the bytes


def test_a_buffer_that_changes_afterwards_is_not_seen(program_class: ProgramClass) -> None:
    data = bytearray(kw.encode(response(40), 7))
    reads = program(program_class, registry["JoinGroupResponse"], 7)
    for given_data in (data, memoryview(data)):
        lazy: Any = reads.decode(given_data, lazy=True)
        before = bytes(data)
        data[:] = b"\xff" * len(data)
        assert lazy.members[33].member_id == "member-33"
        assert lazy == response(40)
        data[:] = before
    del given_data
    data += b"it can change its size, too"


def test_bytes_in_pieces_and_other_values_are_type_errors(program_class: ProgramClass) -> None:
    reads = program(program_class, registry["HeartbeatRequest"], 4)
    for value in ("text", None, 7, [0], memoryview(b"abcdefgh")[::2]):
        with pytest.raises(TypeError):
            reads.decode(value, lazy=True)  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(TypeError):
            reads.decode_prefix(value, 0, True, lazy=True)  # type: ignore[arg-type]  # the point of the test


def test_an_array_outlives_message_and_bytes(program_class: ProgramClass) -> None:
    members = lazily(program_class, response(40), 7).members
    gc.collect()
    element = members[21]
    assert members == response(40).members
    del members
    assert element == response(40).members[21]


def test_arrays_are_made_by_decode_alone(program_class: ProgramClass, joined: Any) -> None:
    if is_native(program_class):
        for cls in (type(joined.members), type(iter(joined.members))):
            for make in (cls, lambda cls=cls: cls.__new__(cls), lambda cls=cls: object.__new__(cls)):
                with pytest.raises(TypeError):
                    make()


# ---- elements made while others are made


@pytest.mark.parametrize("members", [LEAST, 100])
def test_an_element_may_be_made_while_it_is_made(program_class: ProgramClass, members: int) -> None:
    array = lazily(program_class, response(members), 7).members
    taken: list[Any] = []

    def collecting(phase: str, info: object) -> None:  # on Python 3.11 that is when the element is allocated
        taken.extend(array)

    before = gc.get_threshold()
    gc.callbacks.append(collecting)
    try:
        gc.set_threshold(1)
        last = array[-1]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collecting)
    assert last is array[-1]
    assert array == response(members).members
    for made, element in zip(taken, array, strict=False):
        assert made is element


def test_an_iterator_may_be_used_while_it_makes_an_element(joined: Any) -> None:
    elements = iter(joined.members)
    for _ in range(99):
        next(elements)
    taken: list[Any] = []

    def collecting(phase: str, info: object) -> None:
        taken.extend(elements)

    before = gc.get_threshold()
    gc.callbacks.append(collecting)
    try:
        gc.set_threshold(1)
        taken.extend(islice(elements, 1))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collecting)
    assert taken == [joined.members[99]]
    assert list(elements) == []


# ---- the collector


class Note:
    """What a caller may hang to an element, and that knows the message it hangs to."""

    def __init__(self, about: object) -> None:
        self.about = about


@pytest.mark.parametrize("touched", [slice(5, 6), slice(None)])
def test_a_cycle_through_an_element_is_collected(program_class: ProgramClass, touched: slice) -> None:
    topic = kw.messages.MetadataResponseTopic(name="orders", partitions=[kw.messages.MetadataResponsePartition()])
    lazy = lazily(program_class, kw.messages.MetadataResponse(topics=[topic] * 20), 9)
    assert len(lazy.topics[touched]) > 0
    note = Note(lazy)
    lazy.topics[5].partitions.append(note)
    gone = weakref.ref(note)
    del lazy, note
    gc.collect()
    assert gone() is None


def test_a_lazy_message_in_a_cycle_with_its_class_is_collected(program_class: ProgramClass) -> None:
    source = registry["JoinGroupResponse"].schema.source.replace("JoinGroupResponse", "KeptResponse")
    message = read_message(source)
    classes = make_classes(message)
    reads = program_class(compile_plan(message, 7), classes)
    kept: Any = reads.decode(kw.encode(response(40), 7), lazy=True)
    classes["KeptResponse"].kept = kept  # type: ignore[attr-defined]
    gone = weakref.ref(classes["KeptResponse"])
    del classes, reads, kept
    gc.collect()
    assert gone() is None


def test_the_collector_sees_the_elements_that_are_made(program_class: ProgramClass) -> None:
    array = lazily(program_class, response(40), 7).members

    def seen() -> list[object]:
        return [each for each in gc.get_referents(array) if type(each) is kw.JoinGroupResponseMember]

    if is_native(program_class):
        assert seen() == []
        element = array[7]
        assert len(seen()) == 1
        assert seen()[0] is element
        assert len(array[:]) == len(seen()) == 40


# ---- the ways to one


def test_decode_frames_and_codecs_take_lazy() -> None:
    message = response(40)
    data = kw.encode(message, 7)
    body = kw.encode_response(message, 7, correlation_id=5)
    request = kw.messages.SyncGroupRequest(
        group_id="g",
        assignments=[
            kw.messages.SyncGroupRequestAssignment(member_id=f"m-{i}", assignment=bytes(i)) for i in range(20)
        ],
    )
    asked = kw.encode_request(request, 5)
    codec = registry["JoinGroupResponse"]
    for given_data in (bytes, bytearray, memoryview):
        for lazy in (
            kw.decode(kw.JoinGroupResponse, given_data(data), 7, lazy=True),
            codec.decode(given_data(data), 7, lazy=True),
            codec.decode_prefix(given_data(b"header" + data), 7, offset=6, lazy=True)[0],
            kw.decode_response(given_data(body), kw.JoinGroupResponse, 7, lazy=True)[1],
            kw.decode_response(given_data(body), 11, 7, lazy=True, registry=registry)[1],
        ):
            assert type(lazy.members) in LAZY_ARRAYS
            assert lazy == message
        header, lazy_request = kw.decode_request(given_data(asked), lazy=True)
        assert header == kw.decode_request(asked)[0]
        assert type(lazy_request.assignments) in LAZY_ARRAYS
        assert lazy_request == request
        assert kw.decode_request(given_data(asked), lazy=True, registry=registry)[1] == request
        assert kw.encode_request(lazy_request, 5, header=header) == asked
        for wrong in (body[:-1], body + b"more"):
            with pytest.raises(kw.DecodeError) as strictly:
                kw.decode_response(wrong, kw.JoinGroupResponse, 7)
            with pytest.raises(kw.DecodeError) as caught:
                kw.decode_response(given_data(wrong), kw.JoinGroupResponse, 7, lazy=True)
            assert str(caught.value) == str(strictly.value)
    assert kw.decode_response(body + b"more", kw.JoinGroupResponse, 7, strict=False, lazy=True)[1] == message
    with pytest.raises(ValueError, match="negative"):
        codec.decode_prefix(data, 7, offset=-1, lazy=True)
    with pytest.raises(kw.DecodeError, match="version"):
        kw.decode(kw.JoinGroupResponse, data, 99, lazy=True)
    with pytest.raises(TypeError):
        kw.decode(int, b"", 0, lazy=True)


def test_lazy_elements_hold_parts_of_the_input() -> None:
    data = kw.encode(kw.JoinGroupResponse(members=[member(i) for i in range(20)]), 7)
    around = b"--" + data + b"--"
    inputs: list[tuple[Any, object]] = [(data, data), (memoryview(around)[2:-2], around), (bytearray(data), None)]
    for input_, base in inputs:
        for lazy in (
            kw.decode(kw.JoinGroupResponse, input_, 7, bytes="view", lazy=True),
            registry["JoinGroupResponse"].decode_prefix(input_, 7, bytes="view", lazy=True)[0],
            kw.decode_response(bytes(4) + b"\0" + bytes(input_), kw.JoinGroupResponse, 7, bytes="view", lazy=True)[1],
        ):
            assert type(lazy.members) in LAZY_ARRAYS
            for i in (19, 0, 7):
                assert type(lazy.members[i].metadata) is memoryview
                assert lazy.members[i] == member(i)
            assert kw.encode(lazy, 7) == data
        first: Any = kw.decode(kw.JoinGroupResponse, input_, 7, bytes="view", lazy=True).members[0].metadata
        assert base is None or first.obj is base


def member(i: int) -> kw.JoinGroupResponseMember:
    return kw.JoinGroupResponseMember(member_id=f"member-{i}", metadata=bytes([i]) * 2000)


def test_a_subclass_has_lazy_arrays_without_its_code_being_run(program_class: ProgramClass) -> None:
    class Joined(kw.JoinGroupResponse):
        __slots__ = ("more",)

        def __setattr__(self, name: str, value: object) -> None:
            pytest.fail("it was called")

    codec = registry["JoinGroupResponse"]
    lazy = program_class(codec.plan(7), codec.classes, Joined).decode(kw.encode(response(40), 7), lazy=True)
    assert type(lazy) is Joined
    assert type(lazy.members) in LAZY_ARRAYS
    assert lazy.members == response(40).members
    assert type(kw.decode(Joined, kw.encode(response(40), 7), 7, lazy=True).members) in LAZY_ARRAYS


def test_a_text_message_has_no_arrays() -> None:
    message = filled(registry["Heartbeat"], 0)
    assert registry["Heartbeat"].decode(registry["Heartbeat"].encode(message, 0), 0, lazy=True) == message


# ---- memory


@pytest.mark.parametrize(
    "codec", [registry["OffsetFetchRequest"], registry["JoinGroupResponse"], EVERYTHING["Everything"]]
)
def test_what_is_not_touched_takes_a_pointer(codec: MessageCodec) -> None:
    """Native: eight bytes for each element, whatever it would be made of."""
    native = pytest.importorskip("kcoord_wire._native").Program
    version = codec.valid_versions[-1]
    reads = native(codec.plan(version), codec.classes)
    for frame in bombs(codec, version):
        full = reads.decode(frame)
        lazy = reads.decode(frame, lazy=True)
        elements = sum(map(len, long_arrays(full)))
        if not elements:
            continue
        del lazy
        tracemalloc.start()
        lazy = reads.decode(frame, lazy=True)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert taken < 3_000 + 8 * elements
        assert lazy == full
