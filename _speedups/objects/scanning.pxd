# cython: language_level=3
"""Scanning: the walk of reading.pxd without an object, which accepts exactly what `read_struct` accepts.

Laws: a scan that fails describes nothing; `read_struct` meets the same fault and describes it. Nothing is allocated.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from capi cimport *
from cursor cimport *
from plan cimport *
from reading cimport is_known, read_any_length, read_length, read_marker, read_value, read_variant, tagged_step

cdef extern from "utf8.h":
    Py_ssize_t not_utf8 "kcoord_not_utf8"(const uint8_t*, Py_ssize_t) noexcept nogil


cdef inline bint scan_struct(Struct* s, Cursor* c) noexcept:
    """Pass over a struct by its rows; by its steps where something is neither common nor of fixed width."""
    cdef const uint8_t* p = c.p
    cdef Pass* row = s.passes - 1
    cdef int64_t n
    cdef int64_t k
    while True:
        row += 1
        if c.end - p < row.least:
            return False
        # SAFETY: `least` covers the fixed bytes and, where a varint or a tag section follows, its first byte.
        p += row.fixed
        if row.kind == PASS_END:
            break
        if row.kind == PASS_FIELD:
            c.p = p
            if (row.step.presence != REMAINING or p < c.end) and not scan_value(row.step, c):
                return False
            p = c.p
            continue
        if row.compact and p[0] < 0x80:
            n = <int64_t>p[0] - 1
            p += 1
            if n < 0:
                if c.strict and not row.nullable:
                    return False
                continue
        elif row.compact and c.end - p > 1 and 0 < p[1] < 0x80:  # of most assignments
            n = ((p[0] & 0x7F) | (<int64_t>p[1] << 7)) - 1
            p += 2
        else:
            c.p = p
            if not read_any_length(row.step, c, &n):
                return False
            p = c.p
            if n < 0:
                continue
        if row.kind == PASS_STRING:
            if n > c.end - p or n > row.limit or (c.strict and not is_ascii(p, n) and not_utf8(p, n) >= 0):
                return False
            p += n
        elif row.kind == PASS_RUN:
            # A count below 2**31 of at most 16 bytes each.
            if n * row.limit > c.end - p:
                return False
            p += n * row.limit
        else:
            if n > (c.end - p) // row.limit:
                return False
            c.p = p
            for k in range(n):
                if not scan_struct(row.step.item.struct_, c):
                    return False
            p = c.p
    c.p = p
    if not s.flexible:
        return True
    if p[0] != 0:
        return scan_tags(s, c)
    c.p += 1
    return True


cdef inline bint scan_value(Step* step, Cursor* c) noexcept:
    cdef Struct* s
    cdef bint present
    if step.op == STRING:
        return scan_string(step, c)
    if step.op == BYTES:
        return scan_bytes(step, c)
    if step.op == ARRAY:
        return scan_array(step, c)
    if step.op == STRUCT:
        if not step.nullable:
            return scan_struct(step.struct_, c)
        return read_marker(step, c, &present) and (not present or scan_struct(step.struct_, c))
    if step.op == UNION:
        s = read_variant(step, c)
        return s != NULL and scan_struct(s, c)
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


cdef inline bint scan_array(Step* step, Cursor* c) noexcept:
    cdef Step* item = step.item
    cdef int64_t n
    cdef int64_t k
    if not read_length(step, c, &n):
        return False
    # Divided, not multiplied: a count of 2**31 times a size must not wrap.
    if n > (c.end - c.p) // item.min_size:
        return False
    for k in range(n):
        if not (scan_struct(item.struct_, c) if item.op == STRUCT else scan_value(item, c)):
            return False
    return True


cdef inline bint scan_tags(Struct* s, Cursor* c) noexcept:
    cdef const uint8_t* start
    cdef int64_t previous = -1
    cdef uint32_t count
    cdef uint32_t tag
    cdef uint32_t size
    cdef uint32_t n
    cdef Step* step
    if not read_uvarint(c, &count):
        return False
    if count > 0x7FFFFFFF and not c.strict:
        count = 0  # negative as a Java int: Kafka's loop over the tags does not start
    if <int64_t>count * 2 > c.end - c.p:
        return False
    for n in range(count):
        if not read_uvarint(c, &tag) or not read_uvarint(c, &size) or (c.strict and <int64_t>tag <= previous):
            return False
        previous = tag
        step = tagged_step(s, tag)
        if step != NULL:
            start = c.p
            if not scan_value(step, c) or (c.strict and c.p - start != size):
                return False
        elif is_known(s, tag) or size > c.end - c.p:
            return False
        else:
            c.p += size
    return True
