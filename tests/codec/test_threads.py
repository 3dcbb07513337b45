"""Eight threads in the codec at once: each gets what one thread alone would get.

With a GIL the threads take turns as often as Python lets them; `make free-threaded` runs the same tests
without one. Counts are fixed, no time is asserted; KCOORD_WIRE_ROUNDS sets another count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kcoord_wire as kw
from kcoord_wire import messages
from kcoord_wire.codec.columns import ColumnDecoder
from kcoord_wire.schema.files import schema_root

ROOT = Path(__file__).resolve().parents[2]
THREADS = 8
ROUNDS = int(os.environ.get("KCOORD_WIRE_ROUNDS", "100"))


@pytest.fixture(autouse=True)
def _frequent_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What `work(i)` gives in each thread; they start together. The first exception of a thread is raised here."""
    results: list[Any] = [None] * threads
    failures: list[BaseException] = []
    start = threading.Barrier(threads)

    def run(i: int) -> None:
        try:
            start.wait()
            results[i] = work(i)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return results


def samples() -> list[tuple[Any, int]]:
    """Messages with the versions to write them in: small ones, arrays of structs, nullable fields, several versions."""
    members = [
        messages.JoinGroupResponseMember(member_id=f"m-{i}", group_instance_id="é" * i or None, metadata=bytes(i))
        for i in range(20)
    ]
    return [
        *((kw.HeartbeatRequest(group_id="g", generation_id=v, member_id="m"), v) for v in range(5)),
        *((kw.JoinGroupResponse(generation_id=v, members=members, leader="m-0"), v) for v in (5, 7, 9)),
        (kw.JoinGroupRequest(group_id="g", protocol_type="consumer", member_id="m"), 9),
        (kw.OffsetCommitRequest(group_id="g" * 200), 8),
    ]


def test_importing_leaves_the_gil_as_it_was() -> None:
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert enabled == (not sysconfig.get_config_var("Py_GIL_DISABLED")), "an extension turned the GIL on"


def test_threads_share_the_cache_of_programs() -> None:
    cases = [(type(message), message, version, kw.encode(message, version)) for message, version in samples()]
    read = [kw.decode(cls, data, version) for cls, _, version, data in cases]

    def work(i: int) -> None:
        for turn in range(ROUNDS):
            for at in range(len(cases)):
                cls, message, version, data = cases[(at + i + turn) % len(cases)]
                assert kw.encode(message, version) == data
                assert kw.decode(cls, data, version) == read[(at + i + turn) % len(cases)]

    at_once(work)


def test_threads_read_and_write_frames() -> None:
    requests = [(m, v) for m, v in samples() if type(m).__name__.endswith("Request")]
    frames = [kw.encode_request(m, v, correlation_id=n, client_id="c") for n, (m, v) in enumerate(requests)]
    response = kw.JoinGroupResponse(generation_id=3, leader="m")
    answer = kw.encode_response(response, 9, correlation_id=5)

    def work(i: int) -> None:
        for turn in range(ROUNDS):
            n = (i + turn) % len(frames)
            message, version = requests[n]
            header, body = kw.decode_request(frames[n])
            assert (header.correlation_id, header.request_api_version, body) == (n, version, message)
            assert kw.encode_request(message, version, correlation_id=n, client_id="c") == frames[n]
            assert kw.decode_response(answer, kw.JoinGroupResponse, 9)[1] == response

    at_once(work)


def test_threads_write_into_buffers() -> None:
    # A quarter of a megabyte and a few bytes in turn: one block of memory is kept for all threads.
    members = [messages.JoinGroupResponseMember(member_id=f"m-{i}", metadata=bytes(250)) for i in range(1000)]
    cases = [(kw.JoinGroupResponse(members=members[:n]), 9) for n in (1000, 0, 10, 100)]
    bodies = [kw.encode_response(message, version) for message, version in cases]
    region = max(map(len, bodies)) + 1
    shared = bytearray(region * THREADS)

    def work(i: int) -> None:
        own = bytearray()
        for turn in range(ROUNDS):
            (message, version), body = cases[(i + turn) % 4], bodies[(i + turn) % 4]
            assert kw.encode_response_into(message, version, own) == len(body)
            assert own[: len(body)] == body
            end = kw.encode_response_into(message, version, shared, offset=i * region)
            assert shared[i * region : end] == body

    at_once(work)
    assert len(shared) == region * THREADS


def test_threads_fail_each_with_its_own_error() -> None:
    data = kw.encode(kw.JoinGroupRequest(group_id="group", member_id="member"), 9)
    expected = {}
    for cut in range(len(data)):
        with pytest.raises(kw.DecodeError) as caught:
            kw.decode(kw.JoinGroupRequest, data[:cut], 9)
        expected[cut] = str(caught.value)

    def work(i: int) -> None:
        for turn in range(ROUNDS):
            cut = (i * 7 + turn) % len(data)
            with pytest.raises(kw.DecodeError) as caught:
                kw.decode(kw.JoinGroupRequest, data[:cut], 9)
            assert str(caught.value) == expected[cut]

    at_once(work)


def test_threads_share_a_column_decoder() -> None:
    requests = [(m, v) for m, v in samples() if type(m) is kw.HeartbeatRequest]
    frames = pa.array(
        [kw.encode_request(m, v, correlation_id=n, client_id="c" * n) for n, (m, v) in enumerate(requests)], pa.binary()
    )
    decoders = {views: ColumnDecoder(["HeartbeatRequest"], views=views) for views in (False, True)}
    expected = {views: decoder.decode(frames) for views, decoder in decoders.items()}

    def work(i: int) -> None:
        for _ in range(ROUNDS):
            assert decoders[i % 2 == 0].decode(frames).equals(expected[i % 2 == 0])

    at_once(work)


def test_one_buffer_and_one_message_serve_all_threads() -> None:
    message = next(m for m, v in samples() if type(m) is kw.JoinGroupResponse)
    written = kw.encode(message, 9)
    # Without a GIL CPython 3.13 miscounts who holds a bytearray: threads that do no more than make memoryviews of it
    # and release them leave it held.
    sound = sys.version_info >= (3, 14) or getattr(sys, "_is_gil_enabled", lambda: True)()
    shared = bytearray(written) if sound else written

    def work(i: int) -> None:
        for _ in range(ROUNDS):
            assert kw.decode(kw.JoinGroupResponse, shared, 9) == kw.decode(kw.JoinGroupResponse, memoryview(shared), 9)
            assert kw.encode(message, 9) == shared

    at_once(work)
    if isinstance(shared, bytearray):
        shared.append(0)  # BufferError if a thread still held it


def test_threads_make_the_elements_of_one_lazy_message() -> None:
    message = next(m for m, v in samples() if type(m) is kw.JoinGroupResponse)
    written = kw.encode(message, 9)
    size = len(message.members)
    for turn in range(ROUNDS):
        shared = kw.decode(kw.JoinGroupResponse, written, 9, lazy=True)
        elements = iter(shared.members)

        def work(i: int, turn: int = turn, shared: Any = shared, elements: Iterator[Any] = elements) -> list[Any]:
            if i == 0:
                assert kw.encode(shared, 9) == written
            elif i == 1:
                assert shared == message
            elif i == 2:
                assert all(element in message.members for element in elements)
            return [shared.members[(i + turn + at) % size] for at in range(size)]

        first, *others = at_once(work)
        for i, other in enumerate(others, 1):
            assert all(other[at] is first[(at + i) % size] for at in range(size)), "an element was made twice"


def test_the_first_use_of_a_compiled_registry_gives_one_class() -> None:
    for _ in range(2):
        compiled = kw.compile_schemas(schema_root() / "kafka")
        names = list(compiled)

        def work(i: int, compiled: Any = compiled, names: list[str] = names) -> dict[str, type]:
            turned = names if i % 2 else names[::-1]  # four meet at each first use
            made = {name: compiled[name].cls for name in turned}
            for name in turned:
                codec = compiled[name]
                version = codec.valid_versions[-1]
                written = codec.encode(made[name](), version)
                assert codec.decode(written, version) == made[name]()
                assert codec.program(version) is codec.program(version)
                assert compiled.by_class(made[name]) is codec
            return made

        first, *others = at_once(work)
        for other in others:
            assert other == first, "a thread has a class of its own"


@pytest.mark.slow
def test_threads_compile_schemas_at_once() -> None:
    def work(i: int) -> list[str]:
        return list(kw.compile_schemas(schema_root() / "kafka"))

    first, *others = at_once(work)
    assert all(other == first for other in others)


FIRST = """
import sys, threading
sys.setswitchinterval(1e-6)
start = threading.Barrier(8)
failures = []
def run(i):
    try:
        start.wait()
        import kcoord_wire as kw
        request = kw.JoinGroupRequest(group_id="g", member_id="m", protocol_type="consumer")
        frame = kw.encode_request(request, 9, correlation_id=i, client_id="c")
        header, message = kw.decode_request(frame)
        assert (header.correlation_id, message) == (i, request)
        assert kw.decode(kw.JoinGroupRequest, kw.encode(request, 9), 9) == request
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if failures:
    raise failures[0]
"""


def test_eight_threads_may_be_the_first_to_use_the_package() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FIRST], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
