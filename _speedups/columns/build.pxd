# cython: language_level=3
"""Columns while they grow: buffers in Arrow's layout, filled one frame after the other.

Laws:

* The columns of a level share its slots: the rows of the batch, or the elements of one array. Every column of a
  level writes each slot once, in any version. Therefore a column ends where its offsets end, and cutting a level back to a
  slot undoes everything after that slot, without a record of what it was.
* A validity bitmap is allocated at the first null; until then, and by default in the bitmap, every slot is valid.
* No buffer is larger than a multiple of the bytes that the input has left: callers compare counts with those first.
* Offsets stay below 2**31: a value that would pass that is refused before it is written.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from "columns.h":
    bint rare "kcoord_rare"(bint) noexcept nogil
    void* take "kcoord_take"(size_t) noexcept nogil
    void* take_zeros "kcoord_take_zeros"(size_t) noexcept nogil
    void* resized "kcoord_resize"(void*, size_t) noexcept nogil
    void give_back "kcoord_give"(void*) noexcept nogil
    size_t size_of "kcoord_size"(const void*) noexcept nogil

cdef enum:
    SLACK = 32  # bytes after the last one that a copy may write
    MOST = 0x7FFFFFFE  # the largest offset


cdef enum ColumnForm:
    FIXED = 0
    BITS = 1
    TEXT = 2  # strings and bytes, copied
    VIEW = 3  # strings and bytes, as views into the input
    LIST = 4
    FIELDS = 5  # a struct: its fields are columns of the same level


cdef enum Trouble:
    OVERFLOW = 100
    NO_MEMORY = 101


cdef struct Column:
    ColumnForm form
    int width  # bytes of a slot in `data`; 0 if it has no slots there
    Level* level
    Level* items  # of a LIST
    int n_fields
    Column** fields  # of FIELDS
    uint8_t* data
    int32_t* offsets
    uint8_t* valid
    int64_t used  # bytes of TEXT
    int64_t room
    int64_t hint  # the number in the previous batch


cdef struct Level:
    int n_columns
    Column** columns
    int64_t length
    int64_t capacity
    int64_t hint


cdef inline void clear_bit(uint8_t* bits, int64_t i) noexcept nogil:
    bits[i >> 3] &= ~(1 << (i & 7))


cdef inline void set_bit(uint8_t* bits, int64_t i) noexcept nogil:
    bits[i >> 3] |= 1 << (i & 7)


cdef inline int grow_column(Column* c, int64_t old, int64_t new) noexcept nogil:
    cdef void* block
    if c.width:
        block = resized(c.data, new * c.width)
        if block == NULL:
            return NO_MEMORY
        c.data = <uint8_t*>block
    elif c.form == BITS:
        block = resized(c.data, new // 8 + 1)
        if block == NULL:
            return NO_MEMORY
        c.data = <uint8_t*>block
        memset(c.data + (old // 8 + 1 if old else 0), 0, new // 8 - old // 8 + (0 if old else 1))
    elif c.form == TEXT or c.form == LIST:
        block = resized(c.offsets, (new + 1) * 4)
        if block == NULL:
            return NO_MEMORY
        c.offsets = <int32_t*>block
        if old == 0:
            c.offsets[0] = 0
    if c.valid != NULL:
        block = resized(c.valid, new // 8 + 1)
        if block == NULL:
            return NO_MEMORY
        c.valid = <uint8_t*>block
        memset(c.valid + old // 8 + 1, 0xFF, new // 8 - old // 8)
    return 0


cdef inline int set_capacity(Level* level, int64_t capacity) noexcept nogil:
    cdef int i
    cdef int trouble
    for i in range(level.n_columns):
        trouble = grow_column(level.columns[i], level.capacity, capacity)
        if trouble:
            return trouble
    level.capacity = capacity
    return 0


cdef inline int add_slots(Level* level, int64_t n) noexcept nogil:
    """Add `n` slots, which the caller then writes."""
    cdef int64_t capacity = level.length + n
    cdef int trouble
    if rare(capacity > level.capacity):
        if capacity > MOST:
            return OVERFLOW
        # Capped at the limit, because slots within the capacity are not checked again.
        trouble = set_capacity(level, min(max(capacity, 2 * level.capacity, level.hint, 16), MOST))
        if trouble:
            return trouble
    level.length += n
    return 0


cdef inline int make_room(Column* c, int64_t n) noexcept nogil:
    """Make room for `n` more bytes of TEXT, and SLACK."""
    cdef int64_t room
    cdef void* block
    if not rare(c.used + n + SLACK > c.room):
        return 0
    if c.used + n > MOST:
        return OVERFLOW
    room = min(max(c.used + n + SLACK, 2 * c.room, c.hint + SLACK, 256), <int64_t>MOST + SLACK)
    block = resized(c.data, room)
    if block == NULL:
        return NO_MEMORY
    c.data = <uint8_t*>block
    # Capped at the limit, because bytes within the room are not checked again.
    c.room = min(<int64_t>size_of(block), <int64_t>MOST + SLACK)
    return 0


cdef inline int clear_valid(Column* c, int64_t slot) noexcept nogil:
    cdef int64_t size
    if c.valid == NULL:
        size = c.level.capacity // 8 + 1
        c.valid = <uint8_t*>take(size)
        if c.valid == NULL:
            return NO_MEMORY
        memset(c.valid, 0xFF, size)
    clear_bit(c.valid, slot)
    return 0


cdef inline void write_empty(Column* c, int64_t slot) noexcept nogil:
    """Zero, no text, no elements: the content of a null slot, and the default of most fields."""
    if c.width:
        memset(c.data + slot * c.width, 0, c.width)
    elif c.form == BITS:
        clear_bit(c.data, slot)
    elif c.form != FIELDS:
        c.offsets[slot + 1] = c.offsets[slot]


cdef inline int write_null(Column* c, int64_t slot) noexcept nogil:
    """Write null, in a struct also to each of its fields."""
    cdef int i
    cdef int trouble = clear_valid(c, slot)
    write_empty(c, slot)
    for i in range(c.n_fields):
        trouble |= write_null(c.fields[i], slot)
    return trouble


cdef inline void cut(Level* level, int64_t length) noexcept nogil:
    """Take back the slots from `length` on, and everything that they hold."""
    cdef Column* c
    cdef int64_t i
    cdef int n
    if level.length == length:
        return  # nothing was written after it; there may be no offsets yet
    for n in range(level.n_columns):
        c = level.columns[n]
        if c.form == TEXT:
            c.used = c.offsets[length]
        elif c.form == LIST:
            cut(c.items, c.offsets[length])
        if c.valid != NULL:
            for i in range(length, level.length):
                set_bit(c.valid, i)
    level.length = length


cdef inline void take_back(Column* c, int64_t slot) noexcept nogil:
    """Undo the last slot that was written; it will be written again."""
    cdef int i
    if c.form == TEXT:
        c.used = c.offsets[slot]
    elif c.form == LIST:
        cut(c.items, c.offsets[slot])
    if c.valid != NULL:
        set_bit(c.valid, slot)
    for i in range(c.n_fields):
        take_back(c.fields[i], slot)


cdef inline void fill(Level* level, int64_t first, int64_t last) noexcept nogil:
    """Write the slots from `first` to before `last` as empty."""
    cdef Column* c
    cdef int64_t i
    cdef int32_t end
    cdef int n
    for n in range(level.n_columns):
        c = level.columns[n]
        if c.width:
            memset(c.data + first * c.width, 0, (last - first) * c.width)
        elif c.form == TEXT or c.form == LIST:
            end = c.offsets[first]
            for i in range(first, last):
                c.offsets[i + 1] = end
