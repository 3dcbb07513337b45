# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, freethreading_compatible=True
"""The native codec: walks a plan over bytes, filling and reading the slots of the message classes directly.

Laws:

* A read compares every length and count with the bytes that are left before it allocates for it; a write makes room before it
  stores. Nothing a peer sends reaches an allocation unchecked.
* The values, errors, offsets and paths are those of codec.python, the other walk over the same plan.
* The garbage collector tracks a decoded message, and in it the structs that hold structs and the lists of structs. Structs of
  strings, bytes and numbers, and lists of them, cannot be part of a cycle and are left alone: there may be thousands.
* Instances come from the allocator without a call of their class; `check_layout` refuses classes for which that is not safe.
"""

from collections.abc import Sequence
from types import MemberDescriptorType
from uuid import UUID as PyUUID
from uuid import SafeUUID

from kcoord_wire.codec import lazy as lazy_arrays
from kcoord_wire.codec.diagnose import explain_value
from kcoord_wire.codec.into import check_place
from kcoord_wire.codec.view import parts_of, wants_parts
from kcoord_wire.errors import DecodeError, EncodeError, decode_detail, encode_detail

cimport cython
from cpython.bytearray cimport PyByteArray_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyTypeObject
from cpython.slice cimport PySlice_AdjustIndices, PySlice_Unpack
from libc.stdint cimport int16_t, uint8_t, uintptr_t

from capi cimport *
from cursor cimport *
from plan cimport *
from reading cimport read_root, read_value
from scanning cimport scan_struct, scan_value
from sink cimport *
from slots cimport *
from text cimport read_plain_text
from writing cimport write_struct, write_values

__all__ = ["PLAN_FORMAT", "POOLS", "SOURCES", "Dispatch", "Frames", "Program", "limit_pools", "trim"]

PLAN_FORMAT = plan_format()
SOURCES = KCOORD_WIRE_SOURCES
POOLS = bool(POOLS_BY_DEFAULT)

cdef tuple KINDS = (
    "", "truncated", "length", "null", "utf8", "varint", "tag", "value", "range", "trailing", "type", "version",
)
cdef str COPY = "copy"  # the default of `bytes=`, as the interned object that callers mostly give
# Not its tp_new, which makes a dict without its table where a subclass has dict as another base; the method refuses that.
cdef object new_object = object.__new__
cdef object CONSTANTS = ((), "unknown_tags", PyUUID(int=0), SafeUUID.unknown, PyUUID, lazy_arrays.LAZY_ARRAYS, "")  # held here for capi.pxd


cdef Py_ssize_t slot_offset(cls, str attr) except -1:
    descriptor = cls.__dict__.get(attr)
    if not isinstance(descriptor, MemberDescriptorType):
        raise TypeError(f"{cls.__name__}.{attr} is not a slot")
    if descriptor.__objclass__ is not cls:
        raise TypeError(f"{cls.__name__}.{attr} is a slot of {descriptor.__objclass__.__name__}")
    return kcoord_member_offset(<PyObject*>descriptor)


cdef int check_layout(cls, Py_ssize_t slots) except -1:
    """Refuse a class whose instances are anything but a header and this many slots: readers set each of them, and no more."""
    cdef PyTypeObject* c = <PyTypeObject*>cls
    if not isinstance(cls, type) or cls.__bases__ != (object,) or kcoord_dict(c) or kcoord_weak(c):
        raise TypeError(f"{cls!r} is not a dataclass with slots and without a base class")
    if cls.__basicsize__ != object.__basicsize__ + slots * sizeof(PyObject*):
        raise TypeError(f"{cls!r} has other slots than its plan has fields")
    return 0


cdef int set_constants() except -1:
    global NO_TAGS, TAGS_ATTR, ZERO_UUID, UUID_SAFETY, UUID_CLASS, UUID_INT, UUID_SAFE, LAZY_ARRAYS, NO_TEXT
    no_tags, tags_attr, zero_uuid, uuid_safety, uuid_class, classes, no_text = CONSTANTS
    NO_TAGS = <PyObject*>no_tags
    TAGS_ATTR = <PyObject*>tags_attr
    ZERO_UUID = <PyObject*>zero_uuid
    UUID_SAFETY = <PyObject*>uuid_safety
    LAZY_ARRAYS = <PyObject*>classes
    NO_TEXT = <PyObject*>no_text
    # A uuid.UUID is made like a message: its slots stored, its __init__ not run, which would cost more than the message.
    UUID_CLASS = <PyTypeObject*>uuid_class
    UUID_INT = slot_offset(PyUUID, "int")
    UUID_SAFE = slot_offset(PyUUID, "is_safe")
    load_ints()
    return 0


set_constants()
load_pools()


def limit_pools(Py_ssize_t pools, Py_ssize_t block):
    """Drop what is kept, and bound it from now on, in bytes: the pools (pools.h), and the block of `encode_into` (sink.pxd)."""
    set_pool_ceiling(pools)
    drop_kept()
    set_max_kept(block)


def trim():
    return trim_pools() + drop_kept()


cdef object path_text(Failure* failure, str root):
    cdef list parts = [root]
    cdef int i
    for i in range(failure.depth - 1, -1, -1):
        if failure.path[i].attr != NULL:
            parts.append(f".{<object>failure.path[i].attr}")
        else:
            parts.append(f"[{failure.path[i].index}]")
    return "".join(parts)


cdef int open_buffer(data, Py_buffer* view) except -1:
    """The bytes of `data`; TypeError where it has none, or has them in pieces."""
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except BufferError as error:
        raise TypeError(f"the bytes must be contiguous: {error}") from None
    return 0


cdef int raise_python() except -1:
    """Raise the exception that is set; where an allocation failed without one, MemoryError."""
    if PyErr_Occurred() == NULL:
        raise MemoryError
    raise_current()


cdef PyObject* read_message(Struct* s, Cursor* c):
    """A new reference to the message at the cursor, tracked by the garbage collector; NULL with the failure recorded."""
    cdef PyObject* raw
    age_pools()
    raw = read_root(s, c)
    if raw != NULL and not s.tracked and PyType_IS_GC(s.cls):
        PyObject_GC_Track(raw)
    return raw


cdef as_subclass(Struct* s, message, PyTypeObject* subclass):
    """An instance of a subclass that takes over the fields of `message`, which nothing else refers to."""
    cdef int i
    made = new_object(<object>subclass)
    # SAFETY: a subclass has the slots of its base at the same offsets, and a new object has none set.
    for i in range(s.n_steps):
        move_slot(<PyObject*>made, <PyObject*>message, s.steps[i].slot)
    if s.holds_tags:
        move_slot(<PyObject*>made, <PyObject*>message, s.tags_slot)
    return made


cdef inline void move_slot(PyObject* target, PyObject* source, Py_ssize_t offset) noexcept:
    slot_of(target, offset)[0] = slot_of(source, offset)[0]
    slot_of(source, offset)[0] = NULL


cdef bytes copy_of(data):
    cdef Py_buffer view
    open_buffer(data, &view)
    try:
        return (<const char*>view.buf)[:view.len]
    finally:
        PyBuffer_Release(&view)


cdef struct Input:
    # The bytes that a call is given, and what its messages may keep of them.
    const uint8_t* data
    Py_ssize_t size
    bint shared  # as in Cursor, like the next two
    PyObject* whole
    PyObject* kept
    bint viewed  # `view` is open
    Py_buffer view


cdef inline object open_input(Input* input, data, bint parts, bint lazy):
    """Open the bytes of `data`; return what holds them, for the caller to hold until `close_input`.

    :raises TypeError: `data` has no bytes, or has them in pieces
    """
    if parts:
        data = parts_of(data)
    elif lazy and type(data) is not bytes:
        data = copy_of(data)
    input.viewed = type(data) is not bytes
    if input.viewed:
        open_buffer(data, &input.view)
        input.data = <const uint8_t*>input.view.buf
        input.size = input.view.len
    else:
        input.data = <const uint8_t*>BytesData(<PyObject*>data)
        input.size = BytesSize(<PyObject*>data)
    input.shared = input.viewed and not parts
    input.whole = <PyObject*>data if parts else NULL
    input.kept = <PyObject*>data if lazy else NULL
    return data


cdef try_input(Input* input, data, bint parts, bint lazy):
    """As `open_input`; None where that refuses `data`."""
    try:
        return open_input(input, data, parts, lazy)
    except TypeError:
        return None


cdef inline void close_input(Input* input) noexcept:
    if input.viewed:
        PyBuffer_Release(&input.view)


cdef inline void open_cursor_at(Cursor* c, Input* input, Py_ssize_t offset, bint strict, PyObject* owner) noexcept:
    open_cursor(c, input.data, input.size, strict, input.shared)
    c.p += min(offset, input.size)
    c.whole = input.whole
    if input.kept != NULL:  # arrays of structs are read when they are asked for
        c.defer = defer_array
        c.kept = input.kept
        c.owner = owner


cdef Code code_of(Step* step) noexcept:
    """What a walk over fields does at this one."""
    cdef bint bounded = step.bounded or (step.op == ARRAY and step.item.bounded)
    if step.presence == TAGGED:
        return FIELD_TAGGED
    if step.presence == ABSENT:
        return FIELD_CONSTANT if step.default_kind == CONSTANT else FIELD_DEFAULT
    if step.presence == REMAINING:
        return FIELD_REST
    if step.op == STRING and step.high >= 0x7FFF:
        return FIELD_STRING
    if step.op == BYTES:
        return FIELD_BYTES
    if step.op == BOOL:
        return FIELD_BOOL
    if step.op == ARRAY and step.item.op == INT32 and not bounded:
        return FIELD_INT32S
    if step.op == INT32 and not bounded:
        return FIELD_INT32
    if step.op == INT16 and not bounded:
        return FIELD_INT16
    if step.op == INT64 and not bounded:
        return FIELD_INT64
    if step.op == INT8 and not bounded:
        return FIELD_INT8
    return FIELD_VALUE


cdef Py_ssize_t place_in(buffer, offset) except -1:
    """The offset as a number; refused is what `codec.into` refuses: no bytearray, or no offset in it."""
    cdef Py_ssize_t at
    try:
        at = offset
    except OverflowError:
        check_place(buffer, offset)
        raise
    if not isinstance(buffer, bytearray) or not 0 <= at <= PyByteArray_GET_SIZE(buffer):
        check_place(buffer, at)
    return at


cdef Py_ssize_t place(Sink* out, buffer, Py_ssize_t offset) except -1:
    """Copy what was written into the buffer; return the offset of the byte after it."""
    if not copy_into(<PyObject*>buffer, offset, out.start, out.p - out.start):
        check_place(buffer, offset)
    return offset + (out.p - out.start)


cdef bint takes_any_bytes(Step* step) noexcept:
    """Whether a value takes a fixed number of bytes, whatever they are."""
    return step.size > 0 and not step.bounded and step.op != BOOL


cdef bint holds_structs(step):
    return bool(step.struct or step.variants or (step.item and holds_structs(step.item)))


@cython.final
@cython.no_gc_clear  # the C plan points to what `keep` and `blocks` hold, until the very end
cdef class Program:
    """A message at one version: `codec.backend.Program`, in C.

    :param plan: the message's plan at that version
    :param classes: the dataclass of each struct of the plan, by `StructPlan.name`
    :param subclass: of the message's class, where instances of that are read
    :raises TypeError: a class is not a plain dataclass with slots that has the plan's attributes
    """

    cdef Struct* root
    cdef PyTypeObject* subclass  # of the root's class, where instances of that are read; else NULL
    cdef str name
    cdef object plan
    cdef object classes
    # Lists while the plan is built, then tuples: the garbage collector empties a list that is part of a cycle, never a tuple.
    cdef object keep  # every Python object that the C plan points to
    cdef object blocks  # every block of memory that it lies in, as integers
    cdef dict built  # id of a StructPlan -> its Struct*, as an integer; only while the plan is built
    cdef Py_ssize_t room  # the most that a struct of it asks for before it is written (`Struct.room`)
    cdef Py_ssize_t expected  # bytes of the last large message and `room`: the next one is likely to be about as large

    def __cinit__(self, plan, classes, subclass=None):
        self.name = plan.name
        self.plan = plan
        self.classes = classes
        self.keep = [plan]
        self.blocks = []
        self.built = {}
        self.room = 16  # what `write_value` asks for
        self.expected = 0
        self.root = self.build_struct(plan, classes)
        self.subclass = NULL
        if subclass is not None:
            if not isinstance(subclass, type) or not PyType_IsSubtype(<PyTypeObject*>subclass, self.root.cls):
                raise TypeError(f"{subclass!r} is not a subclass of {classes[plan.name]!r}")
            self.subclass = <PyTypeObject*>self.hold(subclass)
        self.keep = tuple(self.keep)
        self.blocks = tuple(self.blocks)
        self.built = None

    def __dealloc__(self):
        for block in self.blocks:
            PyMem_Free(<void*><size_t>block)

    cdef void* block(self, Py_ssize_t count, size_t size) except NULL:
        cdef void* memory = PyMem_Calloc(count if count else 1, size)
        if memory == NULL:
            raise MemoryError
        self.blocks.append(<size_t>memory)
        return memory

    cdef PyObject* hold(self, value):
        self.keep.append(value)
        return <PyObject*>value

    cdef Struct* build_struct(self, plan, classes) except NULL:
        cdef Struct* s
        cdef int i
        if id(plan) in self.built:
            return <Struct*><size_t>self.built[id(plan)]
        s = <Struct*>self.block(1, sizeof(Struct))
        self.built[id(plan)] = <size_t>s
        cls = classes[plan.name]
        check_layout(cls, len(plan.steps) + plan.holds_tags)
        s.cls = <PyTypeObject*>self.hold(cls)
        adopt(s.cls, UUID_CLASS)
        s.flexible = plan.flexible
        s.holds_tags = plan.holds_tags
        s.drops_tags = plan.drops_tags
        s.tags_slot = slot_offset(cls, "unknown_tags") if plan.holds_tags else 0
        s.tracked = any(holds_structs(step) for step in plan.steps)
        s.n_steps = len(plan.steps)
        s.steps = <Step*>self.block(s.n_steps, sizeof(Step))
        for i, step in enumerate(plan.steps):
            self.build_step(step, &s.steps[i], classes)
            s.steps[i].slot = slot_offset(cls, step.attr)
        if len({s.steps[i].slot for i in range(s.n_steps)} | {s.tags_slot}) != s.n_steps + 1:
            raise TypeError(f"{cls!r} has two attributes in one slot")
        position = {id(step): i for i, step in enumerate(plan.steps)}
        s.n_tagged = len(plan.tagged)
        s.tagged = <Step**>self.block(s.n_tagged, sizeof(Step*))
        for i, step in enumerate(plan.tagged):
            s.tagged[i] = &s.steps[position[id(step)]]
        s.n_known = len(plan.known_tags)
        s.known_tags = <int*>self.block(s.n_known, sizeof(int))
        for i, tag in enumerate(sorted(plan.known_tags)):
            s.known_tags[i] = tag
        self.build_fields(s)
        self.build_passes(s)
        return s

    cdef int build_fields(self, Struct* s) except -1:
        """The struct's fields, last first: what one needs is what those after it take."""
        cdef Field* field
        cdef Step* step
        cdef int i
        if s.n_steps > 4096:
            raise ValueError(f"{s.n_steps} fields in one struct")  # more than `need` and `room` can count, 8 bytes each
        s.fields = <Field*>self.block(s.n_steps + 1, sizeof(Field))
        field = &s.fields[s.n_steps]
        field.code = FIELD_REST if s.n_tagged else FIELD_TAGS if s.flexible else FIELD_END
        s.need = s.room = field.code == FIELD_TAGS
        for i in range(s.n_steps - 1, -1, -1):
            step = &s.steps[i]
            field = &s.fields[i]
            field.code = code_of(step)
            field.length = step.length
            field.nullable = step.nullable
            field.ignorable = step.ignorable
            field.slot = step.slot
            field.default_ = step.default_
            field.need = s.need
            field.room = s.room
            # SAFETY: `read_struct` takes the bytes of a number, and after these those that the next fields need; the first bytes
            # of a length; of any other field none before it has looked.
            if field.code <= FIELD_INT32S:
                s.need = 1 if step.length == LENGTH_COMPACT else 2 if step.length == LENGTH_INT16 else 4
                s.room += MAX_UVARINT
            elif field.code <= FIELD_BOOL:
                s.need += step.size
                s.room += step.size
            elif field.code == FIELD_VALUE or field.code == FIELD_REST:
                s.need = 0
        self.room = max(self.room, s.room)
        return 0

    cdef int build_passes(self, Struct* s) except -1:
        """The rows by which a struct is passed over, of the steps."""
        cdef Pass* row = <Pass*>self.block(s.n_steps + 1, sizeof(Pass))
        cdef Step* step
        cdef int i
        s.passes = row
        for i in range(s.n_steps):
            step = &s.steps[i]
            if step.presence == TAGGED or step.presence == ABSENT:
                continue
            if step.presence == PLAIN and takes_any_bytes(step):
                row.fixed += <int>step.size
                continue
            row.step = step
            row.compact = step.length == LENGTH_COMPACT
            row.nullable = step.nullable
            row.kind = PASS_FIELD
            if step.presence == PLAIN and step.op == STRING:
                row.kind, row.limit = PASS_STRING, min(step.high, 0x7FFF)
            elif step.presence == PLAIN and step.op == BYTES:
                row.kind, row.limit = PASS_RUN, 1
            elif step.presence == PLAIN and step.op == ARRAY and takes_any_bytes(step.item):
                row.kind, row.limit = PASS_RUN, step.item.size
            elif step.presence == PLAIN and step.op == ARRAY and step.item.op == STRUCT:
                row.kind, row.limit = PASS_STRUCTS, step.item.min_size
            row.least = row.fixed + (row.compact and row.kind != PASS_FIELD)
            row += 1
        row.kind = PASS_END
        row.least = row.fixed + s.flexible
        return 0

    cdef int build_step(self, step, Step* target, classes) except -1:
        cdef int i
        target.op = step.op
        target.presence = step.presence
        target.length = step.length
        target.nullable = step.nullable
        target.ignorable = step.ignorable
        target.bounded = step.bounded
        target.tag = step.tag
        target.min_size = max(1, step.min_size)
        target.size = step.fixed_size
        target.low = step.low
        target.high = step.high
        target.attr = self.hold(step.attr)
        if step.struct is not None:
            target.struct_ = self.build_struct(step.struct, classes)
        if step.item is not None:
            target.item = <Step*>self.block(1, sizeof(Step))
            self.build_step(step.item, target.item, classes)
        target.n_variants = len(step.variants)
        if step.variants:
            target.variants = <Variant*>self.block(target.n_variants, sizeof(Variant))
            for i, (tag, plan) in enumerate(step.variants):
                target.variants[i].tag = tag
                target.variants[i].struct_ = self.build_struct(plan, classes)
        if step.default == ():
            target.default_kind = EMPTY_LIST
        elif step.default is ...:
            target.default_kind = NEW_STRUCT
        else:
            target.default_kind = CONSTANT
            target.default_ = self.hold(step.default)
        return 0

    cpdef decode(self, data, bint strict=True, bint parts=False, bint lazy=False):
        """The message that `data` holds; in strict mode bytes left over are an error."""
        return self.read_whole(data, 0, strict, parts, lazy, NULL)

    def decode_prefix(self, data, Py_ssize_t offset, bint strict, bint parts=False, bint lazy=False):
        """The message that starts at `offset`, and the offset of the byte after it."""
        cdef Py_ssize_t end = 0
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        message = self.read_whole(data, offset, strict, parts, lazy, &end)
        return message, end

    cdef inline read_whole(self, data, Py_ssize_t offset, bint strict, bint parts, bint lazy, Py_ssize_t* end):
        cdef Input input
        held = open_input(&input, data, parts, lazy)  # until it is closed
        try:
            return self.read(&input, offset, strict, end)
        finally:
            close_input(&input)

    cdef inline read(self, Input* input, Py_ssize_t offset, bint strict, Py_ssize_t* end):
        cdef Cursor c
        cdef PyObject* raw
        cdef object message
        open_cursor_at(&c, input, offset, strict, <PyObject*>self)
        raw = read_message(self.root, &c)
        if raw == NULL:
            self.raise_decode(&c)
        message = <object>raw
        decref(raw)
        if end != NULL:
            end[0] = c.p - c.base
        elif strict and c.p != c.end:
            fail(&c, TRAILING, c.p, c.end - c.p, 0)
            self.raise_decode(&c)
        return message if self.subclass == NULL else as_subclass(self.root, message, self.subclass)

    cdef int raise_decode(self, Cursor* c) except -1:
        cdef Failure* f = &c.failure
        if f.kind == PYTHON:
            raise_python()
        kind = KINDS[f.kind]
        raise DecodeError(kind, c.at - c.base, path_text(f, self.name), decode_detail(kind, f.a, f.b))

    def decode_plain_text(self, bytes data not None, Py_ssize_t offset):
        """The text-encoded message whose tokens start at `offset`, None where codec.text has to look (text.pxd)."""
        cdef const uint8_t* start = <const uint8_t*>BytesData(<PyObject*>data)
        cdef PyObject* raw
        if not 0 <= offset <= BytesSize(<PyObject*>data):
            raise ValueError(f"offset {offset} is outside of the data")
        raw = read_plain_text(self.root, start + offset, start + BytesSize(<PyObject*>data))
        if raw == NULL:
            if PyErr_Occurred() != NULL:
                raise_current()
            return None
        message = <object>raw
        decref(raw)
        return message

    cpdef bytes encode(self, message):
        """The bytes of `message`."""
        cdef Sink out
        open_sink(&out, load_size(&self.expected), False)
        try:
            self.write(message, &out)
            return take_bytes(&out)
        finally:
            close_sink(&out)

    cpdef Py_ssize_t encode_into(self, message, buffer, offset=0) except -1:
        """Write these bytes into `buffer` from `offset` on; return the offset of the byte after them (`codec.into`)."""
        cdef Sink out
        cdef Py_ssize_t at = place_in(buffer, offset)
        open_sink(&out, load_size(&self.expected), True)
        try:
            self.write(message, &out)
            return place(&out, buffer, at)
        finally:
            close_sink(&out)

    cdef inline int write(self, message, Sink* out) except -1:
        out.failure.kind = PYTHON
        if write_struct(self.root, <PyObject*>message, out) < 0:
            self.raise_encode(out, message)
        # The last size and no more than what the last struct asks for: a block that is asked for much larger than it is kept has
        # malloc map fresh pages for every large message (JoinGroupResponse with 1,000 members: 67 us against 25, tests/bench).
        store_size(&self.expected, out.p - out.start + self.room)
        return 0

    cdef int raise_encode(self, Sink* out, message) except -1:
        cdef Failure* f = &out.failure
        if f.kind == PYTHON:
            raise_python()
        kind = KINDS[f.kind]
        path = path_text(f, self.name)
        # The Python walk has a better message. If it does not find the same error (a value may change during the check),
        # the error found here is raised.
        try:
            explain_value(self.plan, self.classes, message)
        except EncodeError as error:
            if error.kind == kind and error.path == path:
                raise error from None
        raise EncodeError(kind, path, encode_detail(kind, f.a, f.b))


include "lazy.pxi"


cdef enum:
    RECENT = 128  # a power of two: entries that are found without the dicts
    UNSUPPORTED_VERSION = 35  # ErrorCode.UNSUPPORTED_VERSION; in a response to ApiVersions it follows the correlation id


@cython.final
@cython.no_gc_clear  # `recent` points to what `rows` holds, until the very end
cdef class Table:
    """What was found for a key and a version, for good: entries are added and never changed or removed.

    Threads need no lock to read it, with a GIL or without: `recent` holds pointers that are replaced whole, to entries that live
    as long as the table, and a dict locks itself where another thread may be adding to it.
    """

    cdef dict rows  # by key, then by version: a tuple (key, version, value), an entry
    cdef PyObject* recent[RECENT]  # entries or NULL, in the place that the identities of key and version give

    def __cinit__(self):
        cdef int i
        self.rows = {}
        for i in range(RECENT):
            self.recent[i] = NULL

    cdef PyObject* get(self, PyObject* key, PyObject* version) except? NULL:
        """The value, borrowed from the table; NULL where there is none."""
        cdef PyObject** place = &self.recent[(<uintptr_t>key // 16 + <uintptr_t>version // 32) % RECENT]
        cdef PyObject* entry = load_pointer(place)
        cdef PyObject* versions
        if entry != NULL and TupleGet(entry, 0) == key and TupleGet(entry, 1) == version:
            return TupleGet(entry, 2)
        versions = PyDict_GetItemWithError(self.rows, <object>key)
        if versions == NULL:
            return NULL
        entry = PyDict_GetItemWithError(<object>versions, <object>version)
        if entry == NULL:
            return NULL
        if TupleGet(entry, 0) == key and TupleGet(entry, 1) == version:
            store_pointer(place, entry)
        return TupleGet(entry, 2)

    cdef PyObject* add(self, key, version, value) except NULL:
        """The value that was added first, by this thread or another one, borrowed from the table."""
        entry = (<dict>self.rows.setdefault(key, {})).setdefault(version, (key, version, value))
        return TupleGet(<PyObject*>entry, 2)


@cython.final
@cython.no_gc_clear
cdef class Dispatch:
    """Implements `codec.backend.Dispatch` without a Python frame between caller and codec.

    :param find: called as find(cls, version, reading) for a pair that is new; returns its program or raises
    """

    cdef object find
    cdef Table programs  # by class

    def __cinit__(self, find):
        self.find = find
        self.programs = Table()

    def decode(self, cls, data, version, *, bint strict=True, bytes="copy", bint lazy=False):
        """The message of class `cls` that `data`, a body without header, holds at `version`; errors as `MessageCodec.decode`."""
        cdef PyObject* program = self.program(cls, version, True)
        cdef bint parts = bytes is not COPY and wants_parts(bytes)
        if Py_TYPE(program) == <PyTypeObject*>Program:
            return (<Program>program).decode(data, strict, parts, lazy)
        return (<object>program).decode(data, strict, parts, lazy)

    def encode(self, message, version, *, bint drop=False):
        """The bytes of `message` at `version`, without size or header; errors as `MessageCodec.encode`."""
        cdef PyObject* program
        if drop:
            return self.find(type(message), version, False, drop=True).encode(message)
        program = self.program(type(message), version, False)
        if Py_TYPE(program) == <PyTypeObject*>Program:
            return (<Program>program).encode(message)
        return (<object>program).encode(message)

    def encode_into(self, message, version, buffer, *, offset=0, bint drop=False):
        """Write these bytes into `buffer` from `offset` on; return the offset of the byte after them."""
        cdef PyObject* program
        if drop:
            return self.find(type(message), version, False, drop=True).encode_into(message, buffer, offset)
        program = self.program(type(message), version, False)
        if Py_TYPE(program) == <PyTypeObject*>Program:
            return (<Program>program).encode_into(message, buffer, offset)
        return (<object>program).encode_into(message, buffer, offset)

    cdef PyObject* program(self, cls, version, bint reading) except NULL:
        cdef PyObject* found = self.programs.get(<PyObject*>cls, <PyObject*>version)
        if found == NULL:
            found = self.programs.add(cls, version, self.find(cls, version, reading))
        return found


@cython.final
@cython.no_gc_clear  # `header` and `body` point to what the programs hold
cdef class Form:
    """`codec.frames.Form` in C: how the frames of a message at one version are read and written."""

    cdef object programs
    cdef Struct* header
    cdef Struct* body  # NULL: by the twin alone
    cdef PyTypeObject* subclass  # as `Program.subclass`
    cdef object api_key
    cdef bint falls_back
    cdef Py_ssize_t room  # as `Program.room`
    cdef Py_ssize_t expected  # as `Program.expected`

    def __cinit__(self, Program header not None, body, api_key, falls_back):
        self.programs = (header, body)
        self.header = header.root
        self.body = (<Program>body).root if type(body) is Program else NULL
        self.subclass = (<Program>body).subclass if type(body) is Program else NULL
        self.api_key = api_key
        self.falls_back = falls_back
        self.room = (<Program>body).room if type(body) is Program else 0
        self.expected = 0


cdef read_frame(Form form, Input* input, bint strict):
    """Header and message; None where the bytes are not such a frame: the twin says why."""
    cdef Cursor c
    cdef PyObject* raw
    open_cursor_at(&c, input, 0, strict, <PyObject*>form.programs)
    raw = read_message(form.header, &c)
    if raw != NULL:
        header = <object>raw
        decref(raw)
        raw = read_message(form.body, &c)
        if raw != NULL:
            message = <object>raw
            decref(raw)
            if strict and c.p != c.end:
                return None
            if form.subclass != NULL:
                message = as_subclass(form.body, message, form.subclass)
            return header, message
    if c.failure.kind == PYTHON:
        raise_python()
    return None


cdef write_frame(Form form, PyObject* header, PyObject** values, message, buffer, Py_ssize_t offset):
    """The bytes of a header, given or of `values`, and of `message`; where `buffer` is not None, the offset of the byte
    after them in it. None where they cannot be written: the twin says why."""
    cdef Sink out
    open_sink(&out, load_size(&form.expected), buffer is not None)
    try:
        out.failure.kind = PYTHON
        if (
            (write_values(form.header, values, &out) if header == NULL else write_struct(form.header, header, &out)) < 0
            or write_struct(form.body, <PyObject*>message, &out) < 0
        ):
            if out.failure.kind == PYTHON:
                raise_python()
            return None
        store_size(&form.expected, out.p - out.start + form.room)
        return take_bytes(&out) if buffer is None else place(&out, buffer, offset)
    finally:
        close_sink(&out)


@cython.final
@cython.no_gc_clear
cdef class Frames:
    """Implements `codec.backend.Frames`: header and message in one walk, without Python code between caller and codec.

    What is no good frame, has another header than Kafka's or is the answer of a broker that does not know the version is
    left to the twin: the same call, with the same arguments.

    :param twin: `codec.frames.Frames`
    """

    cdef object twin
    cdef dict read  # by family: the forms of its requests by api key; None where its requests have another header
    cdef Table written  # the forms of requests, by class
    cdef Table responses  # the forms of responses, by class and by api key
    cdef Table prefixed  # the programs of messages that follow their version, by class

    def __cinit__(self, twin):
        self.twin = twin
        self.read = {}
        self.written = Table()
        self.responses = Table()
        self.prefixed = Table()

    def decode_request(self, body, *, family="kafka", bint strict=True, bytes="copy", bint lazy=False, registry=None):
        """Header and request of a frame body; see `codec.backend.Frames`."""
        result = None
        if registry is None:
            result = self.read_body(body, family, None, None, strict, bytes, lazy)
        if result is not None:
            return result
        return (self.twin if registry is None else registry.frames).decode_request(
            body, family=family, strict=strict, bytes=bytes, lazy=lazy
        )

    def decode_response(self, body, api, version, *, bint strict=True, bytes="copy", bint lazy=False, registry=None):
        """Header and response of a frame body; see `codec.backend.Frames`."""
        result = None
        if registry is None:
            result = self.read_body(body, None, api, version, strict, bytes, lazy)
        if result is not None:
            return result
        return (self.twin if registry is None else registry.frames).decode_response(
            body, api, version, strict=strict, bytes=bytes, lazy=lazy
        )

    cdef inline read_body(self, body, family, api, version, bint strict, bytes, bint lazy):
        """As `read_frame`, of a request where `family` is not None."""
        cdef Input input
        cdef PyObject* found
        if bytes is COPY and BytesCheckExact(<PyObject*>body):
            held = open_input(&input, body, False, lazy)
        else:
            held = try_input(&input, body, wants_parts(bytes), lazy)
            if held is None:
                return None
        try:
            if family is not None:
                found = self.request_form(&input, family)
            else:
                found = self.response_form(&input, api, version)
            if found == NULL or (<Form>found).body == NULL:
                return None
            return read_frame(<Form>found, &input, strict)
        finally:
            close_input(&input)

    def decode_prefixed(self, cls, blob, *, bint strict=True, registry=None):
        """Version and message of a blob that starts with its version; see `codec.backend.Frames`."""
        result = None
        if registry is None:
            result = self.read_prefixed(cls, blob, strict)
        if result is not None:
            return result
        return (self.twin if registry is None else registry.frames).decode_prefixed(cls, blob, strict=strict)

    cdef inline read_prefixed(self, cls, blob, bint strict):
        """Version and message; None where only the twin can say what the blob is, or what is wrong with it."""
        cdef Input input
        cdef PyObject* found
        cdef object version
        cdef Py_ssize_t end = 0
        held = try_input(&input, blob, False, False)
        if held is None:
            return None
        try:
            if input.size < 2:
                return None
            version = <int16_t>load16(input.data)
            found = self.prefixed.get(<PyObject*>cls, <PyObject*>version)
            if found == NULL:
                program = self.twin.prefixed(cls, version)
                if program is None:
                    return None
                found = self.prefixed.add(cls, version, program)
            if Py_TYPE(found) != <PyTypeObject*>Program:
                return None
            message = (<Program>found).read(&input, 2, strict, &end)
            return (version, message) if not strict or end == input.size else None
        finally:
            close_input(&input)

    def encode_request(
        self, request, version, *, correlation_id=0, client_id=None, header=None, bint drop=False, registry=None
    ):
        """The frame body of a request; see `codec.backend.Frames`."""
        data = None
        if registry is None and not drop:
            data = self.write_request(request, version, correlation_id, client_id, header, None, 0)
        if data is not None:
            return data
        return (self.twin if registry is None else registry.frames).encode_request(
            request, version, correlation_id=correlation_id, client_id=client_id, header=header, drop=drop
        )

    def encode_request_into(
        self,
        request,
        version,
        buffer,
        *,
        offset=0,
        correlation_id=0,
        client_id=None,
        header=None,
        bint drop=False,
        registry=None,
    ):
        """Write these bytes into `buffer`; see `codec.backend.Frames`."""
        cdef Py_ssize_t at = place_in(buffer, offset)
        end = None
        if registry is None and not drop:
            end = self.write_request(request, version, correlation_id, client_id, header, buffer, at)
        if end is not None:
            return end
        return (self.twin if registry is None else registry.frames).encode_request_into(
            request,
            version,
            buffer,
            offset=offset,
            correlation_id=correlation_id,
            client_id=client_id,
            header=header,
            drop=drop,
        )

    cdef inline write_request(self, request, version, correlation_id, client_id, header, buffer, Py_ssize_t offset):
        """As `write_frame`."""
        cdef PyObject* found = self.form(self.written, "request", type(request), version, "kafka")
        cdef PyObject** values = [NULL, <PyObject*>version, <PyObject*>correlation_id, <PyObject*>client_id]
        if found == NULL or (<Form>found).body == NULL:
            return None
        values[0] = <PyObject*>(<Form>found).api_key
        if header is None:
            return write_frame(<Form>found, NULL, values, request, buffer, offset)
        if correlation_id is 0 and client_id is None and is_of(<Form>found, <PyObject*>header, values, 2):
            return write_frame(<Form>found, <PyObject*>header, NULL, request, buffer, offset)
        return None

    def encode_response(self, response, version, *, correlation_id=0, header=None, bint drop=False, registry=None):
        """The frame body of a response; see `codec.backend.Frames`."""
        data = None
        if registry is None and not drop:
            data = self.write_response(response, version, correlation_id, header, None, 0)
        if data is not None:
            return data
        return (self.twin if registry is None else registry.frames).encode_response(
            response, version, correlation_id=correlation_id, header=header, drop=drop
        )

    def encode_response_into(
        self, response, version, buffer, *, offset=0, correlation_id=0, header=None, bint drop=False, registry=None
    ):
        """Write these bytes into `buffer`; see `codec.backend.Frames`."""
        cdef Py_ssize_t at = place_in(buffer, offset)
        end = None
        if registry is None and not drop:
            end = self.write_response(response, version, correlation_id, header, buffer, at)
        if end is not None:
            return end
        return (self.twin if registry is None else registry.frames).encode_response_into(
            response, version, buffer, offset=offset, correlation_id=correlation_id, header=header, drop=drop
        )

    cdef inline write_response(self, response, version, correlation_id, header, buffer, Py_ssize_t offset):
        """As `write_frame`."""
        cdef PyObject* found = self.form(self.responses, "response", type(response), version, "kafka")
        cdef PyObject** values = [<PyObject*>correlation_id]
        if found == NULL or (<Form>found).body == NULL:
            return None
        if header is None:
            return write_frame(<Form>found, NULL, values, response, buffer, offset)
        if correlation_id is 0 and is_of(<Form>found, <PyObject*>header, values, 0):
            return write_frame(<Form>found, <PyObject*>header, NULL, response, buffer, offset)
        return None

    cdef PyObject* form(self, Table table, str kind, api, version, family) except? NULL:
        """The Form of a message at a version, borrowed from the table; NULL where only the twin can say what that is."""
        cdef PyObject* found = table.get(<PyObject*>api, <PyObject*>version)
        if found == NULL:
            form = self.twin.form(kind, api, version, family)
            if form is not None:
                found = table.add(api, version, Form(*form))
        return found

    cdef PyObject* request_form(self, Input* input, family) except? NULL:
        """As `form`, by the first bytes of the frame."""
        cdef const uint8_t* data = input.data
        cdef PyObject* found = PyDict_GetItemWithError(self.read, family)
        if found == NULL:
            table = self.read.setdefault(family, Table() if self.twin.has_kafka_header(family) else None)
            found = <PyObject*>table
        if found == Py_None or input.size < 4:
            return NULL
        return self.form(<Table>found, "request", <int16_t>load16(data), <int16_t>load16(data + 2), family)

    cdef PyObject* response_form(self, Input* input, api, version) except? NULL:
        """As `form`; not for what may be the answer of a broker that does not know the version."""
        cdef PyObject* found = self.form(self.responses, "response", api, version, "kafka")
        if found == NULL or not (<Form>found).falls_back:
            return found
        return found if input.size >= 6 and load16(input.data + 4) != UNSUPPORTED_VERSION else NULL


cdef bint is_of(Form form, PyObject* header, PyObject** values, int n) noexcept:
    """Whether a header is of the form's class, and its first `n` fields are these objects: small numbers, one object each."""
    cdef int i
    if Py_TYPE(header) != form.header.cls:
        return False
    for i in range(n):
        if slot_of(header, form.header.steps[i].slot)[0] != values[i]:
            return False
    return True
