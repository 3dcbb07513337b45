# cython: language_level=3
"""Reading frames side by side: one instruction for all of them, then the next.

Laws:

* The positions in one frame depend on each other, those of different frames do not: the processor reads them in parallel
  (JoinGroup requests of 500 bytes, `python -m tests.bench.columns`: 40 % less time).
* A column's slots are written in the order of the rows, as walk_over does, and with the same bytes.
* Any frame that is refused ends the block; the caller takes back what was written of it.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from build cimport *
from read cimport *
from cursor cimport load16, load32, load64

cdef enum:
    BLOCK = 64  # frames


# Frames of one message at one version, in consecutive rows.
cdef struct Frames:
    int n
    int64_t row
    const uint8_t* p[BLOCK]
    const uint8_t* end[BLOCK]


cdef inline bint read_texts(Instruction* it, Frames* f, State* s) noexcept nogil:
    """`read_string` for each frame, into a column that copies; False if one is refused."""
    cdef Column* c = it.column
    cdef uint8_t* data = c.data
    cdef int32_t* ends = c.offsets + f.row + 1
    cdef int64_t used = c.used
    cdef int64_t room = c.room - SLACK
    cdef int64_t high = it.high
    cdef const uint8_t* safe = s.safe
    cdef const uint8_t* p
    cdef int64_t n = 0
    cdef int j
    for j in range(f.n):
        p = quick_length(it, f.p[j], f.end[j], &n)
        # SAFETY: as in read_string, which reads everything that is not plain.
        if 0 <= n <= high and n <= f.end[j] - p and used + n <= room and copy_ascii(data + used, p, n, safe):
            used += n
            ends[j] = <int32_t>used
            f.p[j] = p + n
            continue
        if n == -1 and it.nullable and c.valid != NULL:
            clear_bit(c.valid, f.row + j)
            ends[j] = <int32_t>used
            f.p[j] = p
            continue
        c.used = used
        s.end = f.end[j]
        p = read_string(it, f.p[j], s, f.row + j)
        if p == NULL:
            return False
        f.p[j] = p
        data = c.data
        used = c.used
        room = c.room - SLACK
    c.used = used
    return True


cdef inline bint read_views(Instruction* it, Frames* f, State* s) noexcept nogil:
    """`read_string` for each frame, into a column of views; False if one is refused."""
    cdef uint8_t* views = it.column.data + 16 * f.row
    cdef int64_t high = it.high
    cdef int64_t place
    cdef const uint8_t* safe = s.safe
    cdef const uint8_t* origin = s.origin
    cdef const uint8_t* p
    cdef int64_t n = 0
    cdef int j
    for j in range(f.n):
        p = quick_length(it, f.p[j], f.end[j], &n)
        # SAFETY: as in read_string, which reads everything that is not plain.
        if 0 <= n <= high and n <= f.end[j] - p and all_ascii(p, n, safe):
            place = p - origin
            # The frames of a block never come from a binary_view, so their shift is CHUNK.
            put_view(views + 16 * j, p, <int32_t>n, <int32_t>(place >> CHUNK), <int32_t>(place & (1 << CHUNK) - 1), safe)
            f.p[j] = p + n
            continue
        if n == -1 and it.nullable and it.column.valid != NULL:
            clear_bit(it.column.valid, f.row + j)
            memset(views + 16 * j, 0, 16)
            f.p[j] = p
            continue
        s.end = f.end[j]
        p = read_string(it, f.p[j], s, f.row + j)
        if p == NULL:
            return False
        f.p[j] = p
    return True


cdef inline bint walk_block(Walk* walk, Frames* f, State* s) noexcept nogil:
    """`walk_over` for all of the frames; False if any of them is refused."""
    cdef Instruction* it
    cdef Column* c
    cdef Code code
    cdef Walk one
    cdef const uint8_t* p
    cdef int64_t slot
    cdef int i
    cdef int j
    one.n = 1
    for i in range(walk.n):
        it = &walk.steps[i]
        code = it.code
        c = it.column
        if it.need:
            for j in range(f.n):
                if rare(it.need > f.end[j] - f.p[j]):
                    return False
        # SAFETY: as in walk_over, for each frame.
        if code == STRING_TEXT:
            if not read_texts(it, f, s):
                return False
        elif code == STRING_VIEW:
            if not read_views(it, f, s):
                return False
        elif code == STRING_PASS:
            for j in range(f.n):
                s.end = f.end[j]
                p = read_string(it, f.p[j], s, f.row + j)
                if rare(p == NULL):
                    return False
                f.p[j] = p
        elif code == BYTES_TEXT or code == BYTES_VIEW or code == BYTES_PASS:
            for j in range(f.n):
                s.end = f.end[j]
                p = quick_bytes(it, f.p[j], s, f.row + j)
                if rare(p == NULL):
                    return False
                f.p[j] = p
        elif code == FIXED_4:
            for j in range(f.n):
                (<uint32_t*>c.data)[f.row + j] = load32(f.p[j])
                f.p[j] += 4
        elif code == FIXED_2:
            for j in range(f.n):
                (<uint16_t*>c.data)[f.row + j] = load16(f.p[j])
                f.p[j] += 2
        elif code == FIXED_8:
            for j in range(f.n):
                (<uint64_t*>c.data)[f.row + j] = load64(f.p[j])
                f.p[j] += 8
        elif code == PASS:
            for j in range(f.n):
                f.p[j] += it.size
        elif code == TAGS and it.n_tags == 0:
            for j in range(f.n):
                p = f.p[j]
                if rare(p >= f.end[j] or p[0] != 0):
                    s.end = f.end[j]
                    p = read_tags(it, p, s, f.row + j)
                    if p == NULL:
                        return False
                    f.p[j] = p
                else:
                    f.p[j] = p + 1
        elif code == ELEMENTS or code == NUMBERS:
            for j in range(f.n):
                s.end = f.end[j]
                p = read_elements(it, f.p[j], s, f.row + j)
                if rare(p == NULL):
                    return False
                f.p[j] = p
        else:
            one.steps = it
            for j in range(f.n):
                s.end = f.end[j]
                p = walk_over(&one, f.p[j], s, f.row + j)
                if rare(p == NULL):
                    return False
                f.p[j] = p
    return True
