# cython: language_level=3
"""Reading: a position in a buffer, and the failure with its byte and field.

Laws: nothing is read before `end - p` shows that it is there. Recording a failure takes three stores; the path of fields is
pushed while the stack unwinds, innermost first, and the function that started the read turns it into text.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    MAX_PATH = 160  # structs nest 32 deep at most (schema.reader), each with a name and an index
    VIEWED = 1024  # bytes from which a field may be a memoryview; codec.view.VIEWED


cdef enum Kind:
    PYTHON = 0  # a Python exception is set
    TRUNCATED = 1
    LENGTH = 2
    NULL_VALUE = 3
    UTF8 = 4
    VARINT = 5
    TAG = 6
    VALUE = 7
    RANGE = 8
    TRAILING = 9
    TYPE = 10
    VERSION = 11


cdef struct Part:
    PyObject* attr  # borrowed from the plan; NULL for an index
    Py_ssize_t index


cdef struct Failure:
    Kind kind
    int64_t a  # numbers for the text; the kind defines their meaning
    int64_t b
    int depth
    Part path[MAX_PATH]


cdef struct Cursor


# Makes the array of `n` elements that start at the cursor, which moves behind them, without reading them: `LazyArray`. NULL with
# the cursor where it was, because it is out of memory (an exception is set) or because a reader would find a fault.
ctypedef PyObject* (*Defer)(void* item, Cursor* c, Py_ssize_t n) noexcept


cdef struct Cursor:
    const uint8_t* base
    const uint8_t* p
    const uint8_t* end
    bint strict
    bint shared  # other code may write the buffer during the read: it is not a bytes object
    PyObject* whole  # a memoryview, of which long bytes fields become parts; borrowed; NULL: all are copied
    Defer defer  # NULL: every array is read into a list
    PyObject* kept  # what a deferred array keeps, borrowed: the bytes object that is read, or `whole`,
    PyObject* owner  # and what holds the plan
    const uint8_t* at  # where the failure is
    Failure failure


cdef inline void open_cursor(Cursor* c, const uint8_t* data, Py_ssize_t size, bint strict, bint shared) noexcept nogil:
    c.base = data
    c.p = data
    c.end = data + size
    c.strict = strict
    c.shared = shared
    c.whole = NULL
    c.defer = NULL
    c.failure.kind = PYTHON
    c.failure.depth = 0


cdef inline void push_attr(Failure* f, PyObject* attr) noexcept nogil:
    if f.depth < MAX_PATH:
        f.path[f.depth].attr = attr
        f.depth += 1


cdef inline void push_index(Failure* f, Py_ssize_t index) noexcept nogil:
    if f.depth < MAX_PATH:
        f.path[f.depth].attr = NULL
        f.path[f.depth].index = index
        f.depth += 1


cdef inline PyObject* fail(Cursor* c, Kind kind, const uint8_t* at, int64_t a, int64_t b) noexcept nogil:
    c.at = at
    c.failure.kind = kind
    c.failure.a = a
    c.failure.b = b
    return NULL


cdef inline bint need(Cursor* c, Py_ssize_t n) noexcept nogil:
    """Whether `n` bytes are left; if not, the failure is recorded at the current position."""
    if c.end - c.p >= n:
        return True
    fail(c, TRUNCATED, c.p, n, c.end - c.p)
    return False


# SAFETY: the loads read 2, 4 or 8 bytes at p; every caller has confirmed them with `need`. Shifts keep them free of alignment
# and byte-order assumptions; compilers turn each into one load and one swap.
cdef inline uint16_t load16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t load64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>load32(p) << 32) | load32(p + 4)


cdef inline bint read_uvarint(Cursor* c, uint32_t* value) noexcept nogil:
    """An unsigned varint of at most five bytes, as flexible versions write lengths, counts and tags."""
    cdef const uint8_t* start = c.p
    cdef uint64_t result
    cdef uint8_t byte
    cdef int shift
    # Nearly all lengths take one byte.
    if c.p < c.end and c.p[0] < 0x80:
        value[0] = c.p[0]
        c.p += 1
        return True
    result = 0
    shift = 0
    while True:
        if c.p >= c.end:
            fail(c, TRUNCATED, start, c.end - start + 1, c.end - start)
            return False
        byte = c.p[0]
        c.p += 1
        result |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            fail(c, VARINT, start, 0, 0)
            return False
    if c.strict and (result >> 32 != 0 or byte == 0):
        fail(c, VARINT, start, 0, 0)
        return False
    value[0] = <uint32_t>result
    return True


cdef inline bint is_ascii(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Whether the `n` bytes at `p` are all below 0x80: eight at a time, the last eight of them once more where n is no multiple."""
    cdef const uint8_t* last = p + n - 8
    cdef uint64_t word
    cdef uint64_t seen = 0
    # SAFETY: each memcpy of 8 bytes stays within the n that the caller has confirmed.
    if n >= 8:
        memcpy(&seen, last, 8)
        while p < last:
            memcpy(&word, p, 8)
            seen |= word
            p += 8
        return seen & 0x8080808080808080ULL == 0
    while n > 0:
        seen |= p[0]
        p += 1
        n -= 1
    return seen < 0x80
