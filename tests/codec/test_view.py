"""Views: what they show, what they refuse, and that neither a caller nor another buffer changes them.

Each test runs with both codecs. `fuzz.shown.check_view` compares a view with the decoded message field by field.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import tracemalloc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import kcoord_wire as kw
from fuzz.shown import check_view, rebuilt, same
from kcoord_wire.codec.backend import Program, ProgramClass
from kcoord_wire.codec.registry import MessageCodec, compile_schemas, make_classes, registry
from kcoord_wire.schema.plan import compile_plan
from kcoord_wire.schema.reader import read_message
from tests.support.each import each
from tests.support.golden import DATA, vectors
from tests.support.hostile_bytes import HOSTILE, bombs
from tests.support.strategies import filled

EVERYTHING = compile_schemas(DATA / "parity")
CODECS = [*(codec for codec in registry.values() if codec.schema.encoding == "binary"), *EVERYTHING.values()]
SAMPLE = 6  # prefixes, and changed bytes, of each vector
NO_SUCH = (None, 7, "members", object())


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
    """A view of a response with 100 members."""
    return view_of(program_class, response(100), 7)


def view_of(program_class: ProgramClass, message: object, version: int) -> Any:
    codec = registry.by_class(type(message))
    return program(program_class, codec, version).view(codec.encode(message, version))


# ---- parity with decode


def worn(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The bytes, some of their prefixes, and some copies with one byte changed or more behind."""
    yield data
    yield data + b"\0\xff"
    for at in sorted(rng.sample(range(len(data)), min(SAMPLE, len(data)))):
        yield data[:at]
        yield data[:at] + bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))]) + data[at + 1 :]


@pytest.mark.parametrize("name", vectors())
def test_golden_vectors_and_what_is_left_of_them(program_class: ProgramClass, name: str) -> None:
    rng = random.Random(name)
    # Each version costs the pure codec the compilation of its source, and its views wrap what decode returns.
    for vector in vectors()[name] if is_native(program_class) else vectors()[name][-1:]:
        reads = program(program_class, registry[name], vector.version)
        for data in worn(vector.data, rng):
            for strict in (True, False):
                check_view(reads, data, strict)


@each("codec", CODECS)
def test_every_version_with_each_field_set_and_with_none(program_class: ProgramClass, codec: MessageCodec) -> None:
    for version in codec.valid_versions if is_native(program_class) else codec.valid_versions[-1:]:
        reads = program(program_class, codec, version)
        for message in (filled(codec, version), codec.cls()):
            try:
                data = codec.encode(message, version)
            except kw.EncodeError:
                continue  # a default that this version cannot carry
            assert check_view(reads, data, True) is not None
            assert check_view(reads, data[:-1], True) is None or not data


@each("case, name, version, body", [case[:4] for case in HOSTILE])
def test_hostile_bodies_are_refused_as_by_decode(
    program_class: ProgramClass, case: str, name: str, version: int, body: bytes
) -> None:
    reads = program(program_class, registry[name], version)
    assert check_view(reads, body, True) is None
    check_view(reads, body, False)


def test_lenient_reading_accepts_what_decode_accepts(program_class: ProgramClass) -> None:
    heartbeat = program(program_class, registry["HeartbeatRequest"], 4)
    for body in (
        b"\0\0\0\0\1\2m\0\0",  # null where no null may be
        b"\2\xff\0\0\0\1\2m\0\0",  # no UTF-8
        b"\x82\0g\0\0\0\1\2m\0\0",  # a varint with a byte too many
        b"\2g\0\0\0\1\2m\0\2\5\0\4\0rest",  # tags out of order, and more behind
    ):
        with pytest.raises(kw.DecodeError):
            heartbeat.view(body)
        assert check_view(heartbeat, body, False) is not None


# ---- what is shown


def test_fields_elements_and_unknown_tags(program_class: ProgramClass) -> None:
    message = response(40)
    message.unknown_tags = ((3, b"x"), (9, b""))
    message.members[17].unknown_tags = ((0, b"tag"),)
    view = view_of(program_class, message, 7)
    assert (view.generation_id, view.leader, view.unknown_tags) == (3, "member-0", message.unknown_tags)
    assert len(view.members) == 40
    assert [member.member_id for member in view.members] == [member.member_id for member in message.members]
    assert view.members[17].unknown_tags == ((0, b"tag"),)
    assert view.members[18].unknown_tags == ()
    assert view.members[-1].metadata == message.members[-1].metadata


def test_a_field_that_the_version_lacks_has_its_default(program_class: ProgramClass) -> None:
    view = view_of(program_class, kw.JoinGroupRequest(group_id="g"), 0)
    assert view.rebalance_timeout_ms == -1
    assert view.group_instance_id is None
    assert view.unknown_tags == ()
    old = view_of(program_class, kw.OffsetFetchRequest(group_id="g", topics=None), 7)
    assert old.groups == []
    assert isinstance(old.groups, Sequence)
    assert old.topics is None


def test_an_array_is_a_sequence_equal_to_the_list(joined: Any) -> None:
    members, listed = joined.members, response(100).members
    assert isinstance(members, Sequence)
    assert members == listed
    assert listed == members
    assert members == joined.members
    assert members != listed[:-1]
    assert members != tuple(listed)
    assert listed[40] in members
    assert members.index(listed[99]) == 99
    assert members.count(listed[3]) == 1
    assert list(reversed(members)) == listed[::-1]
    for index in (100, -101, 2**70):
        with pytest.raises(IndexError):
            members[index]
    with pytest.raises(TypeError):
        members["0"]


@pytest.mark.parametrize(
    "part",
    [slice(None), slice(3, 50), slice(-7, None), slice(None, None, 7), slice(90, 5, -9), slice(50, 3), slice(2**70)],
)
def test_a_slice_of_an_array_is_an_array(joined: Any, part: slice) -> None:
    listed = response(100).members
    assert joined.members[part] == listed[part]
    assert [member.member_id for member in joined.members[part]] == [member.member_id for member in listed[part]]
    assert joined.members[part][1::2] == listed[part][1::2]
    assert joined.members[part][::-1] == listed[part][::-1]
    assert len(joined.members[part]) == len(listed[part])


def test_arrays_of_numbers_and_strings(program_class: ProgramClass) -> None:
    request = kw.OffsetFetchRequest(
        groups=[
            kw.OffsetFetchRequestGroup(
                group_id="g",
                topics=[
                    kw.OffsetFetchRequestTopics(name="orders", partition_indexes=list(range(50))),
                    kw.OffsetFetchRequestTopics(name="empty", partition_indexes=[]),
                ],
            )
        ]
    )
    topics = view_of(program_class, request, 8).groups[0].topics
    assert topics[0].partition_indexes[10:20] == list(range(10, 20))
    assert topics[0].partition_indexes[-1] == 49
    assert topics[1].partition_indexes == []
    subscription = view_of(program_class, kw.ConsumerProtocolSubscription(topics=[f"t{i}" for i in range(40)]), 1)
    assert subscription.topics[33] == "t33"
    assert "t39" in subscription.topics


def test_a_view_is_equal_to_its_message_and_no_other(program_class: ProgramClass, joined: Any) -> None:
    message = response(100)
    assert joined == message
    assert message == joined
    assert joined.members[5] == message.members[5]
    message.members[-1].metadata = b"other"
    assert joined != message
    assert message != joined
    assert joined != view_of(program_class, message, 7)
    assert all(joined != other for other in NO_SUCH)
    with pytest.raises(TypeError):
        hash(joined)


def test_a_view_matches_the_patterns_of_its_class(joined: Any) -> None:
    match joined:
        case kw.JoinGroupResponse(generation_id=generation, members=[first, *_]):
            assert generation == 3
            assert first.member_id == "member-0"
        case _:
            pytest.fail("no match")
    assert isinstance(joined.members[0], kw.JoinGroupResponseMember)
    assert dir(joined) == sorted(field for field in kw.JoinGroupResponse.__slots__)


def test_repr_names_class_and_size_without_the_contents(joined: Any) -> None:
    assert repr(joined) == "<view of JoinGroupResponse>"
    assert repr(joined.members) == "<view of 100 elements>"


# ---- what cannot happen to it


def test_nothing_in_a_view_can_be_changed(joined: Any) -> None:
    for change in (
        lambda: setattr(joined, "generation_id", 4),
        lambda: setattr(joined, "anything", 4),
        lambda: delattr(joined, "generation_id"),
        lambda: setattr(joined.members[0], "member_id", ""),
    ):
        with pytest.raises(AttributeError, match="read-only"):
            change()
    with pytest.raises(TypeError, match="read-only"):
        joined.members[0] = joined.members[1]
    with pytest.raises(AttributeError):
        joined.members.append(joined.members[0])
    with pytest.raises(AttributeError, match="JoinGroupResponse has no field 'no_such_field'"):
        _ = joined.no_such_field


def test_the_message_of_a_view_is_the_callers_own(joined: Any) -> None:
    message = kw.message_of(joined)
    assert type(message) is kw.JoinGroupResponse
    assert type(message.members) is list
    message.members[0].member_id = "changed"
    message.members.pop()
    assert joined == response(100)
    assert kw.message_of(joined.members) == response(100).members
    assert kw.message_of(message) is message


def test_a_buffer_that_changes_afterwards_is_not_seen(program_class: ProgramClass) -> None:
    data = bytearray(kw.encode(response(40), 7))
    for given in (data, memoryview(data)):
        view: Any = program(program_class, registry["JoinGroupResponse"], 7).view(given)
        before = bytes(data)
        data[:] = b"\xff" * len(data)
        assert view == response(40)
        assert view.members[33].member_id == "member-33"
        data[:] = before
    del given
    data += b"it can change its size, too"


def test_bytes_in_pieces_and_other_values_are_type_errors(program_class: ProgramClass) -> None:
    reads = program(program_class, registry["HeartbeatRequest"], 4)
    for value in ("text", None, 7, [0], memoryview(b"abcdefgh")[::2]):
        with pytest.raises(TypeError):
            reads.view(value)  # type: ignore[arg-type]  # the point of the test


def test_copies_and_pickles_are_messages(joined: Any) -> None:
    for again in (copy.copy(joined), copy.deepcopy(joined), pickle.loads(pickle.dumps(joined))):
        assert type(again) is kw.JoinGroupResponse
        assert again == response(100)
    assert pickle.loads(pickle.dumps(joined.members)) == response(100).members


def test_views_are_made_by_programs_alone(program_class: ProgramClass, joined: Any) -> None:
    if is_native(program_class):
        for cls in (type(joined), type(joined.members), type(iter(joined.members))):
            for make in (cls, lambda cls=cls: cls.__new__(cls), lambda cls=cls: object.__new__(cls)):
                with pytest.raises(TypeError):
                    make()


@pytest.mark.parametrize("part", [slice(None), slice(None, None, 2)])
def test_an_iterator_may_be_used_while_it_makes_an_element(joined: Any, part: slice) -> None:
    array = joined.members[part]
    elements = iter(array)
    for _ in range(len(array) - 1):
        next(elements)
    taken: list[Any] = []

    def collecting(phase: str, info: object) -> None:  # on Python 3.11 that is when the element is allocated
        taken.extend(elements)

    before = gc.get_threshold()
    gc.callbacks.append(collecting)
    try:
        gc.set_threshold(1)
        taken.append(next(elements, array[-1]))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collecting)
    assert {each.member_id for each in taken} == {array[-1].member_id}
    assert list(elements) == []


def test_a_view_in_a_cycle_with_its_class_is_collected(program_class: ProgramClass) -> None:
    source = registry["HeartbeatRequest"].schema.source.replace("HeartbeatRequest", "KeptRequest")
    message = read_message(source)
    classes = make_classes(message)
    reads = program_class(compile_plan(message, 4), classes)
    classes["KeptRequest"].kept = reads.view(reads.encode(classes["KeptRequest"]()))  # type: ignore[attr-defined]
    gone = weakref.ref(classes["KeptRequest"])
    del classes, reads
    gc.collect()
    assert gone() is None


def test_an_element_outlives_the_view_and_the_bytes(program_class: ProgramClass) -> None:
    member = view_of(program_class, response(40), 7).members[20:][1]
    assert member.member_id == "member-21"
    assert rebuilt(member) == response(40).members[21]


# ---- the ways to one


def test_kw_view_and_the_codec_read_from_an_offset() -> None:
    data = kw.encode(response(3), 7)
    assert kw.view(kw.JoinGroupResponse, data, 7) == response(3)
    behind = kw.view(kw.JoinGroupResponse, b"header" + data, 7, offset=6)
    assert behind.members[2].member_id == "member-2"
    assert registry["JoinGroupResponse"].view(b"header" + data, 7, offset=6) == response(3)
    with pytest.raises(kw.DecodeError) as caught:
        kw.view(kw.JoinGroupResponse, b"header" + data[:-1], 7, offset=6)
    assert (caught.value.kind, caught.value.offset) == ("truncated", 5 + len(data))
    assert kw.view(kw.JoinGroupResponse, data + b"more", 7, strict=False) == response(3)
    with pytest.raises(kw.DecodeError, match="trailing"):
        kw.view(kw.JoinGroupResponse, data + b"more", 7)
    with pytest.raises(kw.DecodeError) as caught:
        kw.view(kw.JoinGroupResponse, data, 7, offset=10_000)
    assert caught.value.offset == len(data)
    with pytest.raises(ValueError, match="negative"):
        kw.view(kw.JoinGroupResponse, data, 7, offset=-1)
    with pytest.raises(kw.DecodeError, match="version"):
        kw.view(kw.JoinGroupResponse, data, 99)
    with pytest.raises(TypeError):
        kw.view(int, b"", 0)


def test_a_view_of_a_text_message() -> None:
    text = registry["Heartbeat"].encode(filled(registry["Heartbeat"], 0), 0)
    view: Any = registry["Heartbeat"].view(text, 0)
    assert view == filled(registry["Heartbeat"], 0)
    with pytest.raises(kw.DecodeError):
        registry["Heartbeat"].view(text + b"/more", 0)


# ---- memory


@pytest.mark.parametrize(
    "codec", [registry["OffsetFetchRequest"], registry["JoinGroupResponse"], EVERYTHING["Everything"]]
)
def test_a_view_takes_little_memory_for_its_bytes(codec: MessageCodec) -> None:
    """Native: the marks of its fields, and eight bytes for every eighth element of its arrays."""
    native = pytest.importorskip("kcoord_wire._native").Program
    version = codec.valid_versions[-1]
    reads = native(codec.plan(version), codec.classes)
    for frame in bombs(codec, version):
        tracemalloc.start()
        view = reads.view(frame)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert taken < 1_000 + 2 * len(frame)
        assert same(rebuilt(view), reads.decode(frame))
