# cython: language_level=3
"""Scanning: the walk of reading.pxd without an object, which accepts exactly what `read_struct` accepts.

Laws: a scan that fails describes nothing; `read_struct` meets the same fault and describes it. Marks take
two bytes at most for each element of the marked struct's arrays, and 8 for each field; a lenient scan, which takes a tagged array
any number of times, 16 bytes at most for each byte. Nothing else is allocated.
"""

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from capi cimport *
from cursor cimport *
from plan cimport *
from reading cimport is_known, read_length, read_marker, read_value, read_variant, tagged_step

cdef extern from "utf8.h":
    Py_ssize_t not_utf8 "kcoord_not_utf8"(const uint8_t*, Py_ssize_t) noexcept nogil

cdef enum:
    # Every how many elements an offset is kept, where elements differ in size: the others are found by passing over up to 7
    # from there. 8 keep an index below 0.2 us (tests/bench) for a byte for each element.
    STRIDE = 8


cdef struct Marks:
    # The offsets of one struct's fields by step, -1 where not on the wire; then that of its tag section, -1 where it holds no
    # unknown tags; then a run for each array, whose field has the run's position in place of its offset:
    # the number of elements (-1 for null), the offset of the first, and of each eighth where elements differ in size.
    Py_ssize_t* at
    Py_ssize_t used
    Py_ssize_t room
    bint starved  # memory ran out


cdef inline bint make_room(Marks* marks, Py_ssize_t more) noexcept:
    cdef Py_ssize_t* at
    if marks.used + more > marks.room:
        # Doubled, because a lenient reader takes a tagged array any number of times.
        marks.room = max(marks.used + more, 2 * marks.used)
        at = <Py_ssize_t*>PyMem_Realloc(marks.at, marks.room * sizeof(Py_ssize_t))
        if at == NULL:
            marks.starved = True
            return False
        marks.at = at
    return True


cdef inline bint scan_root(Struct* s, Cursor* c, Marks* marks) noexcept:
    """Pass over a struct and mark its fields. The caller frees `marks.at`."""
    cdef int i
    marks.at = NULL
    marks.used = marks.room = 0
    marks.starved = False
    if not make_room(marks, s.n_steps + 1):
        return False
    marks.used = s.n_steps + 1
    for i in range(s.n_steps + 1):
        marks.at[i] = -1
    return scan_struct(s, c, marks)


cdef inline bint scan_struct(Struct* s, Cursor* c, Marks* marks) noexcept:
    """Pass over a struct; mark its fields where `marks` is not NULL."""
    cdef Step* step
    cdef int i
    for i in range(s.n_steps):
        step = &s.steps[i]
        if step.presence == PLAIN or (step.presence == REMAINING and c.p < c.end):
            # Large messages consist of these two: they are passed over without a call in between.
            if step.op == STRING or step.op == BYTES:
                if marks != NULL:
                    marks.at[i] = c.p - c.base
                if not (scan_string(step, c) if step.op == STRING else scan_bytes(step, c)):
                    return False
            elif not scan_field(step, c, marks, i):
                return False
    if not s.flexible:
        return True
    if c.p < c.end and c.p[0] == 0:
        c.p += 1
        return True
    return scan_tags(s, c, marks)


cdef inline bint scan_field(Step* step, Cursor* c, Marks* marks, Py_ssize_t i) noexcept:
    if step.op == ARRAY:
        return scan_array(step, c, marks, i)
    if marks != NULL:
        marks.at[i] = c.p - c.base
    return scan_value(step, c)


cdef inline bint scan_value(Step* step, Cursor* c) noexcept:
    """Pass over a value that is no array."""
    cdef Struct* s
    cdef bint present
    if step.op == STRING:
        return scan_string(step, c)
    if step.op == BYTES:
        return scan_bytes(step, c)
    if step.op == STRUCT:
        if not step.nullable:
            return scan_struct(step.struct_, c, NULL)
        return read_marker(step, c, &present) and (not present or scan_struct(step.struct_, c, NULL))
    if step.op == UNION:
        s = read_variant(step, c)
        return s != NULL and scan_struct(s, c, NULL)
    return scan_number(step, c)


cdef inline bint scan_number(Step* step, Cursor* c) noexcept:
    cdef PyObject* value
    if step.bounded:  # rare: no message of Kafka's has a bounded number
        value = read_value(step, c)
        xdecref(value)
        return value != NULL
    if c.end - c.p < step.size or (step.op == BOOL and c.p[0] > 1 and c.strict):
        return False
    c.p += step.size
    return True


cdef inline bint scan_string(Step* step, Cursor* c) noexcept:
    cdef int64_t n
    if not read_length(step, c, &n):
        return False
    if n < 0:
        return True
    if n > 0x7FFF or n > c.end - c.p or n > step.high:
        return False
    if c.strict and not is_ascii(c.p, n) and not_utf8(c.p, n) >= 0:
        return False
    c.p += n
    return True


cdef inline bint scan_bytes(Step* step, Cursor* c) noexcept:
    cdef int64_t n
    if not read_length(step, c, &n):
        return False
    if n < 0:
        return True
    if n > c.end - c.p:
        return False
    c.p += n
    return True


cdef inline bint scan_array(Step* step, Cursor* c, Marks* marks, Py_ssize_t i) noexcept:
    cdef Step* item = step.item
    cdef int64_t n
    cdef Py_ssize_t k
    if not read_length(step, c, &n):
        return False
    # Divided, not multiplied: a count of 2**31 times a size must not wrap.
    if n > (c.end - c.p) // item.min_size:
        return False
    if marks != NULL:
        if not make_room(marks, 2 + (n // STRIDE if item.size == 0 and n > 0 else 0)):
            return False
        marks.at[i] = marks.used
        marks.at[marks.used] = n
        marks.at[marks.used + 1] = c.p - c.base
        marks.used += 2
    if item.size and not item.bounded and (item.op != BOOL or not c.strict):
        c.p += item.size * max(n, 0)
        return True
    for k in range(n):
        if marks != NULL and item.size == 0 and k and k % STRIDE == 0:
            # SAFETY: there are fewer of these than n // STRIDE + 1, for which there is room.
            marks.at[marks.used] = c.p - c.base
            marks.used += 1
        if not (scan_struct(item.struct_, c, NULL) if item.op == STRUCT else scan_value(item, c)):
            return False
    return True


cdef inline bint scan_tags(Struct* s, Cursor* c, Marks* marks) noexcept:
    cdef const uint8_t* section = c.p
    cdef const uint8_t* start
    cdef int64_t previous = -1
    cdef uint32_t count
    cdef uint32_t tag
    cdef uint32_t size
    cdef uint32_t n
    cdef Step* step
    if not read_tag_count(c, &count):
        return False
    for n in range(count):
        if not read_uvarint(c, &tag) or not read_uvarint(c, &size) or (c.strict and <int64_t>tag <= previous):
            return False
        previous = tag
        step = tagged_step(s, tag)
        if step != NULL:
            start = c.p
            if not scan_field(step, c, marks, step - s.steps) or (c.strict and c.p - start != size):
                return False
        elif is_known(s, tag) or size > c.end - c.p:
            return False
        else:
            c.p += size
            if marks != NULL:
                marks.at[s.n_steps] = section - c.base
    return True


cdef inline bint read_tag_count(Cursor* c, uint32_t* count) noexcept:
    if not read_uvarint(c, count):
        return False
    if count[0] > 0x7FFFFFFF and not c.strict:
        count[0] = 0  # negative as a Java int: Kafka's loop over the tags does not start
    return <int64_t>count[0] * 2 <= c.end - c.p


cdef inline list read_unknown_tags(Struct* s, Cursor* c):
    """The unknown fields of the tag section that starts at the cursor, which was scanned."""
    cdef uint32_t count = 0
    cdef uint32_t tag = 0
    cdef uint32_t size = 0
    cdef uint32_t n
    cdef Step* step
    cdef list unknown = []
    read_tag_count(c, &count)
    for n in range(count):
        read_uvarint(c, &tag)
        read_uvarint(c, &size)
        step = tagged_step(s, tag)
        if step != NULL:
            scan_field(step, c, NULL, 0)
        else:
            unknown.append((tag, c.p[:size]))
            c.p += size
    return unknown
