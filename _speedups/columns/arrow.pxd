# cython: language_level=3
"""Arrow's C Data Interface: the input's buffers are borrowed, the columns' buffers are handed over.

Laws:

* Everything a batch hands over belongs to one Holder: blocks of memory, and the input if views point into it. It counts the
  arrays that are not released yet; the release of the last one frees everything, on any thread, without Python.
* A child may be moved out and outlive its parent: it is counted separately.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from build cimport *

cdef extern from "columns.h":
    struct ArrowSchema:
        const char* format
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data
    int64_t less_one "kcoord_less_one"(int64_t*) noexcept nogil


cdef struct Holder:
    int64_t arrays
    int64_t n_blocks
    int64_t room
    void** blocks
    ArrowArray input  # released with the rest; its `release` is NULL if it was released before


cdef inline Holder* new_holder() noexcept nogil:
    return <Holder*>take_zeros(sizeof(Holder))


cdef inline void drop_holder(Holder* h) noexcept nogil:
    cdef int64_t i
    for i in range(h.n_blocks):
        give_back(h.blocks[i])
    give_back(h.blocks)
    if h.input.release != NULL:
        h.input.release(&h.input)
    give_back(h)


cdef inline void* held(Holder* h, void* block) noexcept nogil:
    """Make the holder own the block, and return it; free the block and return NULL if memory is exhausted."""
    cdef void** blocks
    if block == NULL:
        return NULL
    if h.n_blocks == h.room:
        blocks = <void**>resized(h.blocks, (2 * h.room + 64) * sizeof(void*))
        if blocks == NULL:
            give_back(block)
            return NULL
        h.blocks = blocks
        h.room = 2 * h.room + 64
    h.blocks[h.n_blocks] = block
    h.n_blocks += 1
    return block


cdef inline void release_array(ArrowArray* a) noexcept nogil:
    cdef Holder* h = <Holder*>a.private_data
    cdef int64_t i
    for i in range(a.n_children):
        if a.children[i].release != NULL:
            a.children[i].release(a.children[i])
    a.release = NULL
    if less_one(&h.arrays) == 0:
        drop_holder(h)


cdef inline bint open_array(ArrowArray* a, Holder* h, int64_t length, int64_t n_buffers, int64_t n_children) noexcept nogil:
    """Set up `a`, with room for its buffers and its children; False if memory is exhausted."""
    cdef ArrowArray* children
    cdef int64_t i
    memset(a, 0, sizeof(ArrowArray))
    a.length = length
    a.n_buffers = n_buffers
    a.buffers = <const void**>held(h, take_zeros(n_buffers * sizeof(void*)))
    if a.buffers == NULL:
        return False
    if n_children:
        a.children = <ArrowArray**>held(h, take_zeros(n_children * sizeof(ArrowArray*)))
        children = <ArrowArray*>held(h, take_zeros(n_children * sizeof(ArrowArray)))
        if a.children == NULL or children == NULL:
            return False
        for i in range(n_children):
            a.children[i] = &children[i]
        a.n_children = n_children
    a.private_data = h
    a.release = release_array
    h.arrays += 1
    return True


# The data that the columns of a batch share when they are handed over.
cdef struct Batch:
    Holder* holder
    const void* zeros  # as large as the largest buffer of a column that was never written
    int64_t n_variadic
    const void** variadic
    const int64_t* sizes


cdef inline bint give(Column* c, ArrowArray* a, Batch* b, int64_t length, const uint8_t* present) noexcept nogil:
    """Move the column's buffers into `a`. `present`: the rows in which the column is written; NULL for all slots."""
    cdef Holder* h = b.holder
    cdef bint written = c.level.capacity > 0
    cdef int64_t i
    cdef int64_t n_buffers = 1 if c.form == FIELDS else 3 if c.form == TEXT else 2
    if c.form == VIEW:
        n_buffers = 3 + b.n_variadic
    if not open_array(a, h, length, n_buffers, c.n_fields if c.form == FIELDS else 1 if c.form == LIST else 0):
        return False
    if c.valid != NULL and present != NULL:
        for i in range((length + 7) // 8):
            c.valid[i] &= present[i]
    if c.valid != NULL:
        a.buffers[0] = held(h, c.valid)
        c.valid = NULL
        if a.buffers[0] == NULL:
            return False
    else:
        a.buffers[0] = present
    a.null_count = 0 if a.buffers[0] == NULL else -1
    if c.form == FIELDS:
        for i in range(c.n_fields):
            if not give(c.fields[i], a.children[i], b, length, present):
                return False
        return True
    if c.form == FIXED or c.form == BITS or c.form == VIEW:
        a.buffers[1] = held(h, c.data) if written else <void*>b.zeros
        c.data = NULL
    else:
        a.buffers[1] = held(h, c.offsets) if written else <void*>b.zeros
        c.offsets = NULL
    if a.buffers[1] == NULL:
        return False
    if c.form == TEXT:
        c.hint = c.used
        a.buffers[2] = held(h, trimmed(c.data, c.used)) if c.data != NULL else <void*>b.zeros
        c.data = NULL
        c.used = 0
        c.room = 0
        return a.buffers[2] != NULL
    if c.form == VIEW:
        for i in range(b.n_variadic):
            a.buffers[2 + i] = b.variadic[i]
        a.buffers[2 + b.n_variadic] = b.sizes
    elif c.form == LIST:
        if not give(c.items.columns[0], a.children[0], b, c.items.length, NULL):
            return False
        c.items.hint = c.items.length
        c.items.length = 0
        c.items.capacity = 0
    return True


cdef inline void* trimmed(void* block, int64_t used) noexcept nogil:
    """The block, or a smaller copy if it is much too large."""
    cdef void* less = resized(block, used + SLACK) if size_of(block) > 4096 else block
    return block if less == NULL else less


cdef inline void abandon(Level* level) noexcept nogil:
    """Free what the level's columns hold."""
    cdef Column* c
    cdef int i
    for i in range(level.n_columns):
        c = level.columns[i]
        give_back(c.data)
        give_back(c.offsets)
        give_back(c.valid)
        c.data = NULL
        c.offsets = NULL
        c.valid = NULL
        c.used = 0
        c.room = 0
        if c.items != NULL:
            abandon(c.items)
    level.length = 0
    level.capacity = 0
