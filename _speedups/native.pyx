# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The native codec: walks a plan over bytes, filling and reading the slots of the message classes directly.

Laws:

* A read compares every length and count with the bytes that are left before it allocates for it; a write makes room before it
  stores. Nothing a peer sends reaches an allocation unchecked.
* The values, errors, offsets and paths are those of codec.python, the other walk over the same plan.
* Decoded trees are not tracked by the garbage collector below their root: a message's annotations admit only finite trees, so
  that no cycle can run through a value that obeys them. (JoinGroupResponse with 5,000 members: tests/bench, decode.)
* Instances come from the allocator without a call of their class; `check_layout` says of which classes that is true.
"""

from types import MemberDescriptorType
from uuid import UUID as PyUUID
from uuid import SafeUUID

from kcoord_wire.errors import DecodeError, EncodeError, decode_detail, encode_detail

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches, PyErr_Occurred
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport Py_EQ, PyObject, PyTypeObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from cursor cimport *
from plan cimport *
from sink cimport *
from slots cimport *

__all__ = ["PLAN_FORMAT", "Dispatch", "Program"]

cdef extern from "Python.h":
    # The object API on borrowed and new references alike: PyObject* throughout, so that Cython counts nothing on its own.
    PyObject* PyLong_FromLong(long) noexcept
    PyObject* PyLong_FromLongLong(long long) noexcept
    PyObject* PyFloat_FromDouble(double) noexcept
    PyObject* PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*) noexcept
    PyObject* PyUnicode_New(Py_ssize_t, Py_UCS4) noexcept
    void* PyUnicode_DATA(PyObject*) noexcept
    bint PyUnicode_Check(PyObject*) noexcept
    bint PyUnicode_IS_COMPACT_ASCII(PyObject*) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject*) noexcept
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*) noexcept
    PyObject* BytesFromData "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) noexcept
    char* BytesData "PyBytes_AS_STRING"(PyObject*) noexcept
    Py_ssize_t BytesSize "PyBytes_GET_SIZE"(PyObject*) noexcept
    bint BytesCheck "PyBytes_Check"(PyObject*) noexcept
    bint ByteArrayCheck "PyByteArray_Check"(PyObject*) noexcept
    bint MemoryViewCheck "PyMemoryView_Check"(PyObject*) noexcept
    int GetBuffer "PyObject_GetBuffer"(PyObject*, Py_buffer*, int) noexcept
    PyObject* ListNew "PyList_New"(Py_ssize_t) noexcept
    void ListSet "PyList_SET_ITEM"(PyObject*, Py_ssize_t, PyObject*) noexcept
    PyObject* ListGet "PyList_GET_ITEM"(PyObject*, Py_ssize_t) noexcept
    Py_ssize_t ListSize "PyList_GET_SIZE"(PyObject*) noexcept
    bint ListCheck "PyList_Check"(PyObject*) noexcept
    PyObject* TupleGet "PyTuple_GET_ITEM"(PyObject*, Py_ssize_t) noexcept
    Py_ssize_t TupleSize "PyTuple_GET_SIZE"(PyObject*) noexcept
    bint TupleCheck "PyTuple_Check"(PyObject*) noexcept
    bint LongCheck "PyLong_Check"(PyObject*) noexcept
    bint FloatCheck "PyFloat_Check"(PyObject*) noexcept
    long long PyLong_AsLongLongAndOverflow(PyObject*, int*) noexcept
    double PyLong_AsDouble(PyObject*) noexcept
    double PyFloat_AS_DOUBLE(PyObject*) noexcept
    PyObject* PyNumber_Index(PyObject*) noexcept
    int RichCompareBool "PyObject_RichCompareBool"(PyObject*, PyObject*, int) noexcept
    PyTypeObject* Py_TYPE(PyObject*) noexcept
    bint PyObject_TypeCheck(PyObject*, PyTypeObject*) noexcept
    void incref "Py_INCREF"(PyObject*) noexcept
    void decref "Py_DECREF"(PyObject*) noexcept
    void xdecref "Py_XDECREF"(PyObject*) noexcept
    double PyFloat_Unpack8(const char*, int) noexcept
    int PyFloat_Pack8(double, char*, int) noexcept
    void PyErr_SetObject(PyObject*, PyObject*) noexcept
    PyObject* Py_None
    PyObject* Py_True
    PyObject* Py_False

cdef extern from *:
    """
    /* SAFETY: asked only of the member descriptors that __slots__ made; their PyMemberDef holds the slot's offset. */
    #include <structmember.h>
    static Py_ssize_t kcoord_member_offset(PyObject *descriptor) {
        return ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }
    static int kcoord_weak(PyTypeObject *cls) { return cls->tp_weaklistoffset != 0; }
    static int kcoord_dict(PyTypeObject *cls) { return cls->tp_dictoffset != 0; }
    static PyObject *kcoord_long_from_16(const unsigned char *p) { return _PyLong_FromByteArray(p, 16, 0, 0); }
    """
    Py_ssize_t kcoord_member_offset(PyObject*) noexcept
    bint kcoord_weak(PyTypeObject*) noexcept
    bint kcoord_dict(PyTypeObject*) noexcept
    PyObject* kcoord_long_from_16(const uint8_t*) noexcept


PLAN_FORMAT = {
    "Op": {
        "BOOL": <int>BOOL, "INT8": <int>INT8, "INT16": <int>INT16, "INT32": <int>INT32, "INT64": <int>INT64,
        "UINT16": <int>UINT16, "UINT32": <int>UINT32, "FLOAT64": <int>FLOAT64, "UUID": <int>UUID,
        "STRING": <int>STRING, "BYTES": <int>BYTES, "ARRAY": <int>ARRAY, "STRUCT": <int>STRUCT, "UNION": <int>UNION,
    },
    "Length": {
        "NONE": <int>LENGTH_NONE, "INT8": <int>LENGTH_INT8, "INT16": <int>LENGTH_INT16,
        "INT32": <int>LENGTH_INT32, "COMPACT": <int>LENGTH_COMPACT,
    },
    "Presence": {
        "PLAIN": <int>PLAIN, "TAGGED": <int>TAGGED, "ABSENT": <int>ABSENT, "REMAINING": <int>REMAINING,
    },
}

cdef tuple KINDS = (
    "", "truncated", "length", "null", "utf8", "varint", "tag", "value", "range", "trailing", "type", "version",
)
cdef str UNKNOWN_TAGS = "unknown_tags"
cdef PyObject* TAGS_ATTR = <PyObject*>UNKNOWN_TAGS
cdef tuple NO_TAGS = ()
cdef PyObject* EMPTY_TUPLE = <PyObject*>NO_TAGS

# A uuid.UUID is made like a message: its two slots stored, its __init__ not run (it would cost more than the whole message).
cdef object ZERO_UUID = PyUUID(int=0)
cdef object UUID_SAFETY = SafeUUID.unknown
cdef PyTypeObject* UUID_CLASS = <PyTypeObject*>PyUUID
cdef Py_ssize_t UUID_INT = slot_offset(PyUUID, "int")
cdef Py_ssize_t UUID_SAFE = slot_offset(PyUUID, "is_safe")


cdef Py_ssize_t slot_offset(cls, str attr) except -1:
    descriptor = cls.__dict__.get(attr)
    if not isinstance(descriptor, MemberDescriptorType):
        raise TypeError(f"{cls.__name__}.{attr} is not a slot")
    return kcoord_member_offset(<PyObject*>descriptor)


cdef int check_layout(cls) except -1:
    """Refuse a class whose instances are more than a header and slots."""
    cdef PyTypeObject* c = <PyTypeObject*>cls
    if not isinstance(cls, type) or cls.__bases__ != (object,) or kcoord_dict(c) or kcoord_weak(c):
        raise TypeError(f"{cls!r} is not a dataclass with slots and without a base class")
    return 0


# Reading


cdef PyObject* read_value(Step* step, Cursor* c) noexcept:
    """A new reference to the value that starts at the cursor, or NULL with the failure recorded."""
    cdef Op op = step.op
    cdef uint8_t byte
    cdef int64_t number
    cdef PyObject* value
    cdef const uint8_t* at = c.p
    if op == STRING:
        return read_string(step, c)
    if op == BYTES:
        return read_bytes(step, c)
    if op == ARRAY:
        return read_array(step, c)
    if op == STRUCT:
        return read_nullable_struct(step, c) if step.nullable else read_struct(step.struct_, c)
    if op == INT32:
        if not need(c, 4):
            return NULL
        number = <int32_t>load32(c.p)
        c.p += 4
    elif op == INT16:
        if not need(c, 2):
            return NULL
        number = <int16_t>load16(c.p)
        c.p += 2
    elif op == INT64:
        if not need(c, 8):
            return NULL
        number = <int64_t>load64(c.p)
        c.p += 8
    elif op == BOOL:
        if not need(c, 1):
            return NULL
        byte = c.p[0]
        if byte > 1 and c.strict:
            return fail(c, VALUE, at, byte, 0)
        c.p += 1
        value = Py_True if byte else Py_False
        incref(value)
        return value
    elif op == INT8:
        if not need(c, 1):
            return NULL
        number = <int8_t>c.p[0]
        c.p += 1
    elif op == UINT16:
        if not need(c, 2):
            return NULL
        number = load16(c.p)
        c.p += 2
    elif op == UINT32:
        if not need(c, 4):
            return NULL
        number = load32(c.p)
        c.p += 4
    elif op == FLOAT64:
        if not need(c, 8):
            return NULL
        value = PyFloat_FromDouble(PyFloat_Unpack8(<const char*>c.p, 0))
        c.p += 8
        return value
    elif op == UUID:
        return read_uuid(c)
    else:
        return read_union(step, c)
    if step.bounded and not step.low <= number <= step.high:
        return fail(c, RANGE, at, step.low, step.high)
    return PyLong_FromLongLong(number)


cdef inline bint read_length(Step* step, Cursor* c, int64_t* length) noexcept:
    """A length or count: -1 for null, else 0 or more. False with the failure recorded."""
    # One byte of varint is nearly every length there is.
    if step.length == LENGTH_COMPACT and c.p < c.end and 0 < c.p[0] < 0x80:
        length[0] = c.p[0] - 1
        c.p += 1
        return True
    return read_any_length(step, c, length)


cdef bint read_any_length(Step* step, Cursor* c, int64_t* length) noexcept:
    cdef const uint8_t* at = c.p
    cdef uint32_t raw
    cdef int64_t n
    if step.length == LENGTH_COMPACT:
        if not read_uvarint(c, &raw):
            return False
        n = <int64_t>raw - 1
    elif step.length == LENGTH_INT16:
        if not need(c, 2):
            return False
        n = <int16_t>load16(c.p)
        c.p += 2
    else:
        if not need(c, 4):
            return False
        n = <int32_t>load32(c.p)
        c.p += 4
    if n < 0:
        if n < -1 and (c.strict or not step.nullable):
            fail(c, LENGTH, at, n, 0)
            return False
        if not step.nullable or step.presence == REMAINING:
            fail(c, NULL_VALUE, at, 0, 0)
            return False
        n = -1
    length[0] = n
    return True


cdef inline PyObject* new_list(Py_ssize_t n) noexcept:
    cdef PyObject* array = ListNew(n)
    if array != NULL:
        PyObject_GC_UnTrack(array)
    return array


cdef inline PyObject* none() noexcept:
    incref(Py_None)
    return Py_None


cdef PyObject* read_string(Step* step, Cursor* c) noexcept:
    cdef const uint8_t* at = c.p
    cdef int64_t n
    cdef PyObject* text
    if not read_length(step, c, &n):
        return NULL
    if n < 0:
        return none()
    if n > 0x7FFF:
        return fail(c, LENGTH, at, n, 0x7FFF)
    if n > c.end - c.p:
        return fail(c, TRUNCATED, at, n, c.end - c.p)
    if n > step.high:
        return fail(c, RANGE, at, 0, step.high)
    text = read_text(c.p, n)
    if text == NULL:
        return fail_utf8(c)
    c.p += n
    return text


cdef inline PyObject* read_text(const uint8_t* p, Py_ssize_t n) noexcept:
    """A new str of `n` bytes of UTF-8, or NULL with UnicodeDecodeError or MemoryError set."""
    cdef PyObject* text
    if n < 2 or not is_ascii(p, n):
        return PyUnicode_DecodeUTF8(<const char*>p, n, NULL)
    text = PyUnicode_New(n, 127)
    if text != NULL:
        memcpy(PyUnicode_DATA(text), p, n)
    return text


cdef PyObject* fail_utf8(Cursor* c) noexcept:
    """Turn the UnicodeDecodeError that is set into a failure at its first invalid byte."""
    cdef Py_ssize_t start
    if not PyErr_ExceptionMatches(UnicodeDecodeError):
        return fail(c, PYTHON, c.p, 0, 0)
    try:
        raise_current()
    except UnicodeDecodeError as error:
        start = error.start
        return fail(c, UTF8, c.p + start, c.p[start], 0)
    return NULL


cdef int raise_current() except -1:
    return -1


cdef PyObject* read_bytes(Step* step, Cursor* c) noexcept:
    cdef const uint8_t* at = c.p
    cdef int64_t n
    cdef PyObject* value
    if not read_length(step, c, &n):
        return NULL
    if n < 0:
        return none()
    if n > c.end - c.p:
        return fail(c, TRUNCATED, at, n, c.end - c.p)
    value = BytesFromData(<const char*>c.p, n)
    c.p += n
    return value


cdef PyObject* read_array(Step* step, Cursor* c) noexcept:
    cdef const uint8_t* at = c.p
    cdef Step* item = step.item
    cdef int64_t n
    cdef Py_ssize_t i
    cdef PyObject* array
    cdef PyObject* value
    if not read_length(step, c, &n):
        return NULL
    if n < 0:
        return none()
    # Divided, not multiplied: a count of 2**31 times a size must not wrap.
    if n > (c.end - c.p) // item.min_size:
        return fail(c, TRUNCATED, at, n * item.min_size, c.end - c.p)
    array = new_list(n)
    if array == NULL:
        return fail(c, PYTHON, at, 0, 0)
    for i in range(n):
        if item.op == STRUCT:
            value = read_struct(item.struct_, c)
        else:
            value = read_value(item, c)
        if value == NULL:
            push_index(&c.failure, i)
            decref(array)
            return NULL
        ListSet(array, i, value)
    return array


cdef PyObject* read_nullable_struct(Step* step, Cursor* c) noexcept:
    cdef const uint8_t* at = c.p
    cdef int64_t marker
    cdef uint32_t raw
    if step.length == LENGTH_COMPACT:
        if not read_uvarint(c, &raw):
            return NULL
        marker = <int64_t>raw
        if marker > 1 and c.strict:
            return fail(c, VALUE, at, marker, 0)
        if marker == 0:
            return none()
    else:
        if not need(c, 1):
            return NULL
        marker = <int8_t>c.p[0]
        c.p += 1
        if marker != 1 and marker != -1 and c.strict:
            return fail(c, VALUE, at, marker, 0)
        if marker < 0:
            return none()
    return read_struct(step.struct_, c)


cdef PyObject* read_union(Step* step, Cursor* c) noexcept:
    cdef const uint8_t* at = c.p
    cdef int tag
    cdef int i
    if not need(c, 1):
        return NULL
    tag = <int8_t>c.p[0]
    c.p += 1
    for i in range(step.n_variants):
        if step.variants[i].tag == tag:
            return read_struct(step.variants[i].struct_, c)
    return fail(c, VALUE, at, tag, 0)


cdef PyObject* read_uuid(Cursor* c) noexcept:
    cdef PyObject* self
    cdef PyObject* number
    if not need(c, 16):
        return NULL
    number = kcoord_long_from_16(c.p)
    self = kcoord_new(UUID_CLASS) if number != NULL else NULL
    if self == NULL:
        xdecref(number)
        return fail(c, PYTHON, c.p, 0, 0)
    c.p += 16
    slot_of(self, UUID_INT)[0] = number
    incref(<PyObject*>UUID_SAFETY)
    slot_of(self, UUID_SAFE)[0] = <PyObject*>UUID_SAFETY
    return self


cdef PyObject* read_struct(Struct* s, Cursor* c) noexcept:
    cdef PyObject* self = kcoord_new(s.cls)
    cdef Step* step
    cdef PyObject* value
    cdef int i
    if self == NULL:
        return fail(c, PYTHON, c.p, 0, 0)
    for i in range(s.n_steps):
        step = &s.steps[i]
        if step.presence == PLAIN:
            value = read_value(step, c)
        elif step.presence == TAGGED:
            continue
        elif step.presence == REMAINING and c.p < c.end:
            value = read_value(step, c)
        else:
            value = make_default(step)
        if value == NULL:
            push_attr(&c.failure, step.attr)
            decref(self)
            return NULL
        slot_of(self, step.slot)[0] = value
    if not s.holds_tags:
        return self
    if s.flexible:
        if c.p == c.end or c.p[0] != 0 or s.n_tagged:
            if not read_tags(s, self, c):
                decref(self)
                return NULL
            return self
        c.p += 1
    incref(EMPTY_TUPLE)
    slot_of(self, s.tags_slot)[0] = EMPTY_TUPLE
    return self


cdef bint read_tags(Struct* s, PyObject* self, Cursor* c) noexcept:
    """The tag section: known fields into their slots, the others as they are into unknown_tags."""
    cdef const uint8_t* at = c.p
    cdef uint32_t count
    cdef PyObject* tags = EMPTY_TUPLE
    cdef PyObject* value
    cdef int i
    if not read_uvarint(c, &count):
        push_attr(&c.failure, TAGS_ATTR)
        return False
    if <int64_t>count * 2 > c.end - c.p:
        fail(c, TRUNCATED, at, <int64_t>count * 2, c.end - c.p)
        push_attr(&c.failure, TAGS_ATTR)
        return False
    incref(tags)
    if count:
        decref(tags)
        tags = read_tagged_fields(s, self, c, count)
        if tags == NULL:
            return False
    slot_of(self, s.tags_slot)[0] = tags
    for i in range(s.n_tagged):
        if slot_of(self, s.tagged[i].slot)[0] == NULL:
            value = make_default(s.tagged[i])
            if value == NULL:
                fail(c, PYTHON, c.p, 0, 0)
                return False
            slot_of(self, s.tagged[i].slot)[0] = value
    return True


cdef PyObject* read_tagged_fields(Struct* s, PyObject* self, Cursor* c, uint32_t count) noexcept:
    """A new reference to the tuple of unknown tags, or NULL."""
    cdef const uint8_t* tag_at
    cdef const uint8_t* size_at
    cdef const uint8_t* start
    cdef int64_t previous = -1
    cdef uint32_t tag
    cdef uint32_t size
    cdef uint32_t n
    cdef Step* step
    cdef PyObject* value
    cdef list unknown = []
    cdef tuple result
    for n in range(count):
        tag_at = c.p
        if not read_uvarint(c, &tag):
            push_attr(&c.failure, TAGS_ATTR)
            return NULL
        size_at = c.p
        if not read_uvarint(c, &size):
            push_attr(&c.failure, TAGS_ATTR)
            return NULL
        if c.strict and <int64_t>tag <= previous:
            fail(c, TAG, tag_at, tag, 0)
            push_attr(&c.failure, TAGS_ATTR)
            return NULL
        previous = tag
        step = tagged_step(s, tag)
        if step != NULL:
            start = c.p
            value = read_value(step, c)
            if value != NULL and c.strict and c.p - start != size:
                decref(value)
                value = fail(c, TAG, start, tag, c.p - start)
            if value == NULL:
                push_attr(&c.failure, step.attr)
                return NULL
            # In lenient mode a tag may come twice; the last one counts.
            xdecref(slot_of(self, step.slot)[0])
            slot_of(self, step.slot)[0] = value
            continue
        if is_known(s, tag):
            fail(c, TAG, tag_at, tag, 0)
            push_attr(&c.failure, TAGS_ATTR)
            return NULL
        if size > c.end - c.p:
            fail(c, TRUNCATED, size_at, size, c.end - c.p)
            push_attr(&c.failure, TAGS_ATTR)
            return NULL
        try:
            unknown.append((tag, c.p[:size]))
        except BaseException as error:
            PyErr_SetObject(<PyObject*>Py_TYPE(<PyObject*>error), <PyObject*>error)
            return fail(c, PYTHON, size_at, 0, 0)
        c.p += size
    result = tuple(unknown)
    incref(<PyObject*>result)
    return <PyObject*>result


cdef Step* tagged_step(Struct* s, uint32_t tag) noexcept nogil:
    cdef int i
    for i in range(s.n_tagged):
        if <uint32_t>s.tagged[i].tag == tag:
            return s.tagged[i]
    return NULL


cdef bint is_known(Struct* s, int64_t tag) noexcept nogil:
    cdef int i
    for i in range(s.n_known):
        if s.known_tags[i] == tag:
            return True
    return False


# Defaults


cdef PyObject* make_default(Step* step) noexcept:
    """A new reference to the value of a field that is not on the wire."""
    if step.default_kind == CONSTANT:
        incref(step.default_)
        return step.default_
    if step.default_kind == EMPTY_LIST:
        return new_list(0)
    return default_struct(step.struct_ if step.struct_ != NULL else step.variants[0].struct_)


cdef PyObject* default_struct(Struct* s) noexcept:
    cdef PyObject* self = kcoord_new(s.cls)
    cdef PyObject* value
    cdef int i
    if self == NULL:
        return NULL
    for i in range(s.n_steps):
        value = make_default(&s.steps[i])
        if value == NULL:
            decref(self)
            return NULL
        slot_of(self, s.steps[i].slot)[0] = value
    if s.holds_tags:
        incref(EMPTY_TUPLE)
        slot_of(self, s.tags_slot)[0] = EMPTY_TUPLE
    return self


cdef int is_default(Step* step, PyObject* value) except -1:
    """Whether a value is the field's default. It may run Python code (a foreign __eq__): the caller holds `value`."""
    if step.default_kind == EMPTY_LIST:
        if ListCheck(value):
            return ListSize(value) == 0
        return TupleCheck(value) and TupleSize(value) == 0
    if step.default_kind == NEW_STRUCT:
        return is_default_struct(step.struct_ if step.struct_ != NULL else step.variants[0].struct_, value)
    if value == step.default_:
        return True
    if step.default_ == Py_None or value == Py_None:
        return False
    if step.op == UUID and Py_TYPE(value) == UUID_CLASS:
        value = slot_of(value, UUID_INT)[0]
        return value != NULL and RichCompareBool(value, slot_of(step.default_, UUID_INT)[0], Py_EQ)
    return compare(value, step.default_)


cdef int compare(PyObject* a, PyObject* b) except -1:
    return RichCompareBool(a, b, Py_EQ)


cdef int is_default_struct(Struct* s, PyObject* value) except -1:
    cdef PyObject* inner
    cdef int i
    cdef int same
    if Py_TYPE(value) != s.cls:
        return False
    for i in range(s.n_steps):
        inner = slot_of(value, s.steps[i].slot)[0]
        if inner == NULL:
            return False
        incref(inner)
        try:
            same = is_default(&s.steps[i], inner)
        finally:
            decref(inner)
        if not same:
            return False
    if s.holds_tags:
        inner = slot_of(value, s.tags_slot)[0]
        return inner != NULL and TupleCheck(inner) and TupleSize(inner) == 0
    return True


# Writing. Each writer returns 0, or -1 with the failure recorded (kind PYTHON: an exception is set).


cdef int refuse(Sink* out, Kind kind, int64_t a, int64_t b) noexcept:
    out.failure.kind = kind
    out.failure.a = a
    out.failure.b = b
    return -1


cdef int python_failure(Sink* out, error) noexcept:
    """Put a caught exception back: whoever opened the sink raises it."""
    PyErr_SetObject(<PyObject*>Py_TYPE(<PyObject*>error), <PyObject*>error)
    return refuse(out, PYTHON, 0, 0)


cdef int write_value(Step* step, PyObject* value, Sink* out) noexcept:
    cdef Op op = step.op
    cdef int64_t number
    if op == STRING:
        return write_string(step, value, out)
    if op == BYTES:
        return write_bytes(step, value, out)
    if op == ARRAY:
        return write_array(step, value, out)
    if op == STRUCT:
        return write_nullable_struct(step, value, out) if step.nullable else write_struct(step.struct_, value, out)
    if op == UNION:
        return write_union(step, value, out)
    if make_room(out, 16) < 0:
        return -1
    if op == BOOL:
        if value != Py_True and value != Py_False:
            return refuse(out, TYPE, op, 0)
        store8(out, value == Py_True)
        return 0
    if op == FLOAT64:
        return write_float(value, out)
    if op == UUID:
        return write_uuid(value, out)
    if read_number(value, out, step, &number) < 0:
        return -1
    if op == INT32 or op == UINT32:
        store32(out, <uint32_t>number)
    elif op == INT16 or op == UINT16:
        store16(out, <uint16_t>number)
    elif op == INT64:
        store64(out, <uint64_t>number)
    else:
        store8(out, <uint8_t>number)
    return 0


cdef inline int make_room(Sink* out, Py_ssize_t n) noexcept:
    return 0 if out.end - out.p >= n else grow_or_refuse(out, n)


cdef int grow_or_refuse(Sink* out, Py_ssize_t n) noexcept:
    try:
        grow(out, n)
    except BaseException as error:
        return python_failure(out, error)
    return 0


cdef int read_number(PyObject* value, Sink* out, Step* step, int64_t* number) noexcept:
    cdef int overflow = 0
    cdef PyObject* index
    if LongCheck(value):
        number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    else:
        index = PyNumber_Index(value)
        if index == NULL:
            if not PyErr_ExceptionMatches(TypeError):
                return refuse(out, PYTHON, 0, 0)
            PyErr_Clear()
            return refuse(out, TYPE, step.op, 0)
        number[0] = PyLong_AsLongLongAndOverflow(index, &overflow)
        decref(index)
    if overflow or not step.low <= number[0] <= step.high:
        return refuse(out, RANGE, step.low, step.high)
    return 0


cdef int write_float(PyObject* value, Sink* out) noexcept:
    cdef double number
    if FloatCheck(value):
        number = PyFloat_AS_DOUBLE(value)
    elif LongCheck(value):
        number = PyLong_AsDouble(value)
        if number == -1.0 and PyErr_Occurred() != NULL:
            PyErr_Clear()
            return refuse(out, RANGE, 0, 0)
    else:
        return refuse(out, TYPE, FLOAT64, 0)
    PyFloat_Pack8(number, <char*>out.p, 0)
    out.p += 8
    return 0


cdef int write_uuid(PyObject* value, Sink* out) noexcept:
    cdef bytes raw
    if not PyObject_TypeCheck(value, UUID_CLASS):
        return refuse(out, TYPE, UUID, 0)
    if value == <PyObject*>ZERO_UUID:
        store64(out, 0)
        store64(out, 0)
        return 0
    try:
        raw = (<object>value).int.to_bytes(16, "big")
        store_raw(out, <const char*>raw, 16)
    except BaseException as error:
        return python_failure(out, error)
    return 0


cdef int write_length(Step* step, Sink* out, int64_t n) noexcept:
    """A length or count, -1 for null. Room for it must have been made."""
    if step.length == LENGTH_COMPACT:
        store_uvarint(out, <uint32_t>(n + 1))
    elif step.length == LENGTH_INT16:
        if n > 0x7FFF:
            return refuse(out, LENGTH, n, 0x7FFF)
        store16(out, <uint16_t>n)
    else:
        store32(out, <uint32_t>n)
    return 0


cdef int write_null(Step* step, Sink* out) noexcept:
    if not step.nullable:
        return refuse(out, NULL_VALUE, 0, 0)
    if make_room(out, MAX_UVARINT) < 0:
        return -1
    return write_length(step, out, -1)


cdef int write_string(Step* step, PyObject* value, Sink* out) noexcept:
    cdef const char* data
    cdef Py_ssize_t n
    if value == Py_None:
        return write_null(step, out)
    if not PyUnicode_Check(value):
        return refuse(out, TYPE, STRING, 0)
    if PyUnicode_IS_COMPACT_ASCII(value):
        data = <const char*>PyUnicode_DATA(value)
        n = PyUnicode_GET_LENGTH(value)
    else:
        data = PyUnicode_AsUTF8AndSize(value, &n)
        if data == NULL:
            if not PyErr_ExceptionMatches(UnicodeEncodeError):
                return refuse(out, PYTHON, 0, 0)
            PyErr_Clear()
            return refuse(out, TYPE, STRING, 1)
    if n > 0x7FFF:
        return refuse(out, LENGTH, n, 0x7FFF)
    if n > step.high:
        return refuse(out, RANGE, 0, step.high)
    if make_room(out, MAX_UVARINT + n) < 0:
        return -1
    write_length(step, out, n)
    store_raw(out, data, n)
    return 0


cdef int write_bytes(Step* step, PyObject* value, Sink* out) noexcept:
    cdef Py_buffer view
    cdef int result
    if BytesCheck(value):
        return write_run(step, BytesData(value), BytesSize(value), out)
    if value == Py_None:
        return write_null(step, out)
    if not ByteArrayCheck(value) and not MemoryViewCheck(value):
        return refuse(out, TYPE, BYTES, 0)
    if GetBuffer(value, &view, PyBUF_SIMPLE) < 0:
        PyErr_Clear()
        return refuse(out, TYPE, BYTES, 0)
    result = write_run(step, <const char*>view.buf, view.len, out)
    PyBuffer_Release(&view)
    return result


cdef int write_run(Step* step, const char* data, Py_ssize_t n, Sink* out) noexcept:
    if n > 0x7FFFFFFF:
        return refuse(out, LENGTH, n, 0x7FFFFFFF)
    if make_room(out, MAX_UVARINT + n) < 0:
        return -1
    write_length(step, out, n)
    store_raw(out, data, n)
    return 0


cdef int write_array(Step* step, PyObject* array, Sink* out) noexcept:
    cdef bint is_list = ListCheck(array)
    cdef Py_ssize_t n
    cdef Py_ssize_t i
    cdef int result
    if array == Py_None:
        return write_null(step, out)
    if not is_list and not TupleCheck(array):
        return refuse(out, TYPE, ARRAY, 0)
    n = ListSize(array) if is_list else TupleSize(array)
    if n > 0x7FFFFFFF:
        return refuse(out, LENGTH, n, 0x7FFFFFFF)
    if make_room(out, MAX_UVARINT) < 0 or write_length(step, out, n) < 0:
        return -1
    # SAFETY: an element's writer may run Python code (__index__, __eq__) that changes the list. The array and the element in
    # hand are held, and the size is looked at again before each access.
    incref(array)
    result = 0
    for i in range(n):
        if is_list and ListSize(array) != n:
            result = refuse(out, TYPE, ARRAY, 1)
            break
        result = write_item(step.item, ListGet(array, i) if is_list else TupleGet(array, i), out)
        if result < 0:
            push_index(&out.failure, i)
            break
    decref(array)
    return result


cdef int write_item(Step* item, PyObject* value, Sink* out) noexcept:
    cdef int result
    incref(value)
    if item.op == STRUCT:
        result = write_struct(item.struct_, value, out)
    else:
        result = write_value(item, value, out)
    decref(value)
    return result


cdef int write_nullable_struct(Step* step, PyObject* value, Sink* out) noexcept:
    if make_room(out, 1) < 0:
        return -1
    if value == Py_None:
        store8(out, 0 if step.length == LENGTH_COMPACT else 0xFF)
        return 0
    store8(out, 1)
    return write_struct(step.struct_, value, out)


cdef int write_union(Step* step, PyObject* value, Sink* out) noexcept:
    cdef int i
    for i in range(step.n_variants):
        if PyObject_TypeCheck(value, step.variants[i].struct_.cls):
            if make_room(out, 1) < 0:
                return -1
            store8(out, <uint8_t>step.variants[i].tag)
            return write_struct(step.variants[i].struct_, value, out)
    return refuse(out, TYPE, UNION, 0)


cdef int write_struct(Struct* s, PyObject* self, Sink* out) noexcept:
    cdef Step* step
    cdef PyObject* value
    cdef int i
    cdef int result
    if Py_TYPE(self) != s.cls and not PyObject_TypeCheck(self, s.cls):
        return refuse(out, NULL_VALUE if self == Py_None else TYPE, STRUCT, 0)
    for i in range(s.n_steps):
        step = &s.steps[i]
        if step.presence == TAGGED or (step.presence == ABSENT and step.ignorable):
            continue
        value = slot_of(self, step.slot)[0]
        if value == NULL:
            result = refuse(out, TYPE, -1, 0)
        else:
            # Held, for the writer may run Python code that stores into this very slot.
            incref(value)
            if step.presence == PLAIN:
                result = write_value(step, value, out)
            elif step.presence == ABSENT:
                result = check_default(step, value, out)
            else:
                result = 0 if value == Py_None else write_value(step, value, out)
            decref(value)
        if result < 0:
            push_attr(&out.failure, step.attr)
            return -1
    return write_tags(s, self, out) if s.holds_tags else 0


cdef int check_default(Step* step, PyObject* value, Sink* out) noexcept:
    try:
        return 0 if is_default(step, value) else refuse(out, VERSION, 0, 0)
    except BaseException as error:
        return python_failure(out, error)


cdef int write_tags(Struct* s, PyObject* self, Sink* out) noexcept:
    """The tag section, or, in a version without one, a check that there is nothing to put in it."""
    cdef PyObject* held = slot_of(self, s.tags_slot)[0]
    cdef int result = 0
    cdef list unknown
    if held == NULL or held != EMPTY_TUPLE:
        try:
            unknown = check_tags(s, None if held == NULL else <object>held)
        except EncodeError as error:
            result = refuse(out, TAG if error.kind == "tag" else TYPE, -2, 0)
        except BaseException as error:
            result = python_failure(out, error)
        if result < 0:
            push_attr(&out.failure, TAGS_ATTR)
            return -1
    else:
        unknown = None
    if not s.flexible:
        return 0
    if s.n_tagged == 0 and not unknown:
        if make_room(out, 1) < 0:
            return -1
        store8(out, 0)
        return 0
    return write_tagged_fields(s, self, unknown, out)


cdef list check_tags(Struct* s, tags):
    """unknown_tags as a list of (tag, bytes), or EncodeError."""
    cdef list result = []
    previous = -1
    if not isinstance(tags, list | tuple):
        raise EncodeError("type", "", "")
    for pair in tags:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], int):
            raise EncodeError("type", "", "")
        tag, data = pair
        if not 0 <= tag <= 0x7FFFFFFF or not isinstance(data, bytes | bytearray | memoryview):
            raise EncodeError("type", "", "")
        if tag <= previous or is_known(s, tag) or not s.flexible:
            raise EncodeError("tag", "", "")
        previous = tag
        result.append((tag, bytes(data)))
    return result


cdef int write_tagged_fields(Struct* s, PyObject* self, list unknown, Sink* out) noexcept:
    cdef Py_ssize_t place
    cdef Py_ssize_t next_unknown = 0
    cdef Py_ssize_t n_unknown = 0 if unknown is None else len(unknown)
    cdef uint32_t count = 0
    cdef int i
    cdef int written
    try:
        place = reserve_uvarint(out)
        for i in range(s.n_tagged):
            while next_unknown < n_unknown and unknown[next_unknown][0] < s.tagged[i].tag:
                write_unknown(unknown[next_unknown], out)
                next_unknown += 1
                count += 1
            written = write_tagged(s.tagged[i], slot_of(self, s.tagged[i].slot)[0], out)
            if written < 0:
                push_attr(&out.failure, s.tagged[i].attr)
                return -1
            count += written
        while next_unknown < n_unknown:
            write_unknown(unknown[next_unknown], out)
            next_unknown += 1
            count += 1
    except BaseException as error:
        return python_failure(out, error)
    settle_uvarint(out, place, count)
    return 0


cdef int write_unknown(tuple pair, Sink* out) except -1:
    cdef uint32_t tag = pair[0]
    cdef bytes data = pair[1]
    cdef Py_ssize_t n = len(data)
    room(out, 2 * MAX_UVARINT + n)
    store_uvarint(out, tag)
    store_uvarint(out, <uint32_t>n)
    store_raw(out, <const char*>data, n)
    return 0


cdef int write_tagged(Step* step, PyObject* value, Sink* out) noexcept:
    """1 where the field was written, 0 where it holds its default, -1 with the failure recorded."""
    cdef Py_ssize_t place
    cdef int result
    if value == NULL:
        return refuse(out, TYPE, -1, 0)
    incref(value)
    try:
        result = is_default(step, value)
        if result == 0:
            room(out, MAX_UVARINT)
            store_uvarint(out, <uint32_t>step.tag)
            place = reserve_uvarint(out)
            result = write_value(step, value, out)
            if result == 0:
                settle_uvarint(out, place, <uint32_t>(out.p - out.start - place))
                result = 1
        else:
            result = 0
    except BaseException as error:
        result = python_failure(out, error)
    decref(value)
    return result


# Programs


cdef object path_text(Failure* failure, str root):
    cdef list parts = [root]
    cdef int i
    for i in range(failure.depth - 1, -1, -1):
        if failure.path[i].attr != NULL:
            parts.append(f".{<object>failure.path[i].attr}")
        else:
            parts.append(f"[{failure.path[i].index}]")
    return "".join(parts)


@cython.final
cdef class Program:
    """A message at one version: `codec.backend.Program`, in C.

    :param plan: the message's plan at that version
    :param classes: the dataclass of each struct of the plan, by `StructPlan.name`
    :raises TypeError: a class is not a plain dataclass with slots that has the plan's attributes
    """

    cdef Struct* root
    cdef str name
    cdef list keep  # every Python object that the C plan points to
    cdef list blocks  # every block of memory that it lies in, as integers
    cdef dict built  # id of a StructPlan -> its Struct*, as an integer
    cdef Py_ssize_t expected  # bytes of the last large message: the next one is likely to be about as large

    def __cinit__(self, plan, classes):
        self.name = plan.name
        self.keep = [plan]
        self.blocks = []
        self.built = {}
        self.expected = 0
        self.root = self.build_struct(plan, classes)

    def __dealloc__(self):
        if self.blocks is not None:
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
        check_layout(cls)
        s.cls = <PyTypeObject*>self.hold(cls)
        s.flexible = plan.flexible
        s.holds_tags = plan.holds_tags
        s.tags_slot = slot_offset(cls, UNKNOWN_TAGS) if plan.holds_tags else 0
        s.n_steps = len(plan.steps)
        s.steps = <Step*>self.block(s.n_steps, sizeof(Step))
        for i, step in enumerate(plan.steps):
            self.build_step(step, &s.steps[i], classes)
            s.steps[i].slot = slot_offset(cls, step.attr)
        position = {id(step): i for i, step in enumerate(plan.steps)}
        s.n_tagged = len(plan.tagged)
        s.tagged = <Step**>self.block(s.n_tagged, sizeof(Step*))
        for i, step in enumerate(plan.tagged):
            s.tagged[i] = &s.steps[position[id(step)]]
        s.n_known = len(plan.known_tags)
        s.known_tags = <int*>self.block(s.n_known, sizeof(int))
        for i, tag in enumerate(sorted(plan.known_tags)):
            s.known_tags[i] = tag
        return s

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

    cpdef decode(self, data, bint strict=True):
        """The message that `data` holds; in strict mode bytes left over are an error."""
        cdef Py_buffer view
        if type(data) is bytes:
            return self.read_whole(<const uint8_t*>BytesData(<PyObject*>data), BytesSize(<PyObject*>data), 0, strict, NULL)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.read_whole(<const uint8_t*>view.buf, view.len, 0, strict, NULL)
        finally:
            PyBuffer_Release(&view)

    def decode_prefix(self, data, Py_ssize_t offset, bint strict):
        """The message that starts at `offset`, and the offset of the byte after it."""
        cdef Py_buffer view
        cdef Py_ssize_t end = 0
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            message = self.read_whole(<const uint8_t*>view.buf, view.len, min(offset, view.len), strict, &end)
            return message, end
        finally:
            PyBuffer_Release(&view)

    cdef read_whole(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t offset, bint strict, Py_ssize_t* end):
        cdef Cursor c
        cdef PyObject* raw
        cdef object message
        c.base = data
        c.p = data + offset
        c.end = data + size
        c.strict = strict
        c.failure.kind = PYTHON
        c.failure.depth = 0
        raw = read_struct(self.root, &c)
        if raw == NULL:
            self.raise_decode(&c)
        message = <object>raw
        decref(raw)
        if PyType_IS_GC(self.root.cls):
            PyObject_GC_Track(raw)
        if end != NULL:
            end[0] = c.p - c.base
        elif strict and c.p != c.end:
            fail(&c, TRAILING, c.p, c.end - c.p, 0)
            self.raise_decode(&c)
        return message

    cdef int raise_decode(self, Cursor* c) except -1:
        cdef Failure* f = &c.failure
        if f.kind == PYTHON:
            if PyErr_Occurred() == NULL:
                raise MemoryError
            raise_current()
        kind = KINDS[f.kind]
        raise DecodeError(kind, c.at - c.base, path_text(f, self.name), decode_detail(kind, f.a, f.b))

    cpdef bytes encode(self, message):
        """The bytes of `message`."""
        cdef Sink out
        cdef bytes data
        open_sink(&out, self.expected)
        try:
            out.failure.kind = PYTHON
            if write_struct(self.root, <PyObject*>message, &out) < 0:
                self.raise_encode(&out)
            data = take_bytes(&out)
        finally:
            close_sink(&out)
        # The last size and no more than the last field's slack: a block that is asked for much larger than it is kept has
        # malloc map fresh pages for every large message (JoinGroupResponse with 1,000 members: 67 us against 25, tests/bench).
        self.expected = len(data) + 2 * MAX_UVARINT
        return data

    cdef int raise_encode(self, Sink* out) except -1:
        cdef Failure* f = &out.failure
        if f.kind == PYTHON:
            if PyErr_Occurred() == NULL:
                raise MemoryError
            raise_current()
        kind = KINDS[f.kind]
        raise EncodeError(kind, path_text(f, self.name), encode_detail(kind, f.a, f.b))


@cython.final
cdef class Dispatch:
    """`codec.dispatch.Dispatch`, in C: from class and version to program without a Python frame in between.

    :param find: called as find(cls, version, reading) for a pair that is new; returns its program or raises
    """

    cdef object find
    cdef dict programs
    # The pair that was asked for last: in a loop it is the pair that is asked for next.
    cdef object last_class
    cdef object last_version
    cdef object last_program

    def __init__(self, find):
        self.find = find
        self.programs = {}

    def decode(self, cls, data, version, *, bint strict=True):
        program = self.program(cls, version, True)
        if type(program) is Program:
            return (<Program>program).decode(data, strict)
        return program.decode(data, strict)

    def encode(self, message, version):
        program = self.program(type(message), version, False)
        if type(program) is Program:
            return (<Program>program).encode(message)
        return program.encode(message)

    cdef program(self, cls, version, bint reading):
        cdef PyObject* versions
        cdef PyObject* found
        if cls is self.last_class and version is self.last_version:
            return self.last_program
        versions = PyDict_GetItemWithError(self.programs, cls)
        if versions != NULL:
            found = PyDict_GetItemWithError(<object>versions, version)
            if found != NULL:
                self.last_class, self.last_version, self.last_program = cls, version, <object>found
                return <object>found
        program = self.find(cls, version, reading)
        self.programs.setdefault(cls, {})[version] = program
        return program
