# cython: language_level=3
"""Reading a frame into columns: a walk over instructions, each of which checks some bytes and writes a slot of its column.

Laws:

* Values, errors and offsets are those of reading.pxd, the other walk over the same plan. An instruction without a column
  checks what one with a column checks: leaving columns out never changes what is refused.
* The bytes of consecutive fixed-width fields are checked once, at the first of them; if bytes are missing, `short_of` finds
  which field is refused, and why.
* Every length and count is compared with the bytes that are left before a column grows by it.
* Nothing here touches a Python object.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from build cimport *
from cursor cimport LENGTH, NULL_VALUE, RANGE, TAG, TRUNCATED, UTF8, VALUE, VARINT, load16, load32, load64
from plan cimport LENGTH_COMPACT, LENGTH_INT8, LENGTH_INT16, LENGTH_INT32

cdef extern from "columns.h":
    Py_ssize_t as_java "kcoord_as_java"(uint8_t*, const uint8_t*, Py_ssize_t) noexcept nogil
    Py_ssize_t not_utf8 "kcoord_not_utf8"(const uint8_t*, Py_ssize_t) noexcept nogil
    bint copy_ascii "kcoord_copy_ascii"(uint8_t*, const uint8_t*, Py_ssize_t, const uint8_t*) noexcept nogil
    bint all_ascii "kcoord_all_ascii"(const uint8_t*, Py_ssize_t, const uint8_t*) noexcept nogil
    void copy_bytes "kcoord_copy"(uint8_t*, const uint8_t*, Py_ssize_t, const uint8_t*) noexcept nogil
    void put_view "kcoord_put_view"(uint8_t*, const uint8_t*, int32_t, int32_t, int32_t, const uint8_t*) noexcept nogil
    void copy_swapped "kcoord_copy_swapped"(uint8_t*, const uint8_t*, Py_ssize_t, int) noexcept nogil


cdef enum:
    CHUNK = 30  # a view's offset is an int32: larger inputs become buffers at every 2**30 bytes, each reaching to the end


cdef enum Code:
    # fixed width
    PASS = 0  # skip `size` bytes
    FIXED_1 = 1
    FIXED_2 = 2
    FIXED_4 = 3
    FIXED_8 = 4
    UNSIGNED_2 = 5
    UNSIGNED_4 = 6
    BOOLEAN = 7
    BOUNDED = 8
    UUID_TEXT = 9
    UUID_VIEW = 10
    LAST_FIXED = 10
    # of any width
    STRING_PASS = 11
    STRING_TEXT = 12
    STRING_VIEW = 13
    BYTES_PASS = 14
    BYTES_TEXT = 15
    BYTES_VIEW = 16
    ELEMENTS = 17
    NUMBERS = 18  # an array of fixed width whose elements need no check
    MARKED = 19  # a nullable struct
    IF_MORE = 20  # a field that is present if any bytes remain
    TAGS = 21
    # nothing on the wire
    DEFAULT_EMPTY = 22
    DEFAULT_NULL = 23
    DEFAULT_FIXED = 24
    DEFAULT_BYTES = 25


cdef struct Tagged:
    uint32_t tag
    Walk* value  # NULL: a known tag that this version does not have
    Walk* absent
    Column* column


cdef struct Instruction:
    Code code
    int length  # how a length, a count or a marker is written: plan.Length
    int need  # bytes that this instruction and those after it read without another check
    int size  # bytes of a fixed width
    bint nullable
    bint signed_
    int n_tags
    Column* column  # NULL: check only
    Walk* body  # of an element, a nullable struct, or a field that may be missing
    Walk* absent
    Tagged* tags
    int64_t least  # smallest number of bytes of an element
    int64_t low
    int64_t high
    uint64_t fixed
    const uint8_t* text  # a default, in memory that outlives the batch
    int32_t n_text
    int32_t place  # offset of that text in the constants


cdef struct Walk:
    int n
    Instruction* steps


cdef struct State:
    const uint8_t* end
    const uint8_t* safe  # end of the memory that may be read
    bint strict
    int kind
    const uint8_t* at
    # what a view's offset refers to
    const uint8_t* origin
    int shift
    int32_t first_buffer
    int32_t constants  # the buffer of `texts`
    Column texts  # only with views: the bytes of defaults, then strings in which U+FFFD was inserted
    int64_t block_version  # the version given for the gathered frames


cdef inline const uint8_t* refuse(State* s, int kind, const uint8_t* at) noexcept nogil:
    s.kind = kind
    s.at = at
    return NULL


cdef inline const uint8_t* read_varint(const uint8_t* p, State* s, uint32_t* value) noexcept nogil:
    cdef const uint8_t* start = p
    cdef uint64_t result = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if p >= s.end:
            return refuse(s, TRUNCATED, start)
        byte = p[0]
        p += 1
        result |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            return refuse(s, VARINT, start)
    if s.strict and (result >> 32 != 0 or (byte == 0 and shift)):
        return refuse(s, VARINT, start)
    value[0] = <uint32_t>result
    return p


cdef inline const uint8_t* read_count(Instruction* it, const uint8_t* p, State* s, int64_t* n) noexcept nogil:
    """A length or count: -1 for null."""
    # Nearly all lengths are a varint of one byte, or an int16 that is not negative.
    if it.length == LENGTH_COMPACT:
        if p < s.end and 0 < p[0] < 0x80:
            n[0] = p[0] - 1
            return p + 1
    elif it.length == LENGTH_INT16 and s.end - p >= 2 and p[0] < 0x80:
        n[0] = load16(p)
        return p + 2
    return read_any_count(it, p, s, n)


cdef inline const uint8_t* read_any_count(Instruction* it, const uint8_t* p, State* s, int64_t* n) noexcept nogil:
    cdef const uint8_t* at = p
    cdef uint32_t raw = 0
    cdef int64_t number
    if it.length == LENGTH_COMPACT:
        p = read_varint(p, s, &raw)
        if p == NULL:
            return NULL
        # Lenient: a Java int, as in reading.pxd.
        number = <int64_t>raw - 1 if s.strict else <int32_t>(raw - 1)
    elif it.length == LENGTH_INT16:
        if s.end - p < 2:
            return refuse(s, TRUNCATED, at)
        number = <int16_t>load16(p)
        p += 2
    else:
        if s.end - p < 4:
            return refuse(s, TRUNCATED, at)
        number = <int32_t>load32(p)
        p += 4
    if number < 0:
        if number < -1 and (s.strict or not it.nullable):
            return refuse(s, LENGTH, at)
        if it.nullable:
            number = -1
        elif s.strict:
            return refuse(s, NULL_VALUE, at)
        else:
            number = 0
    n[0] = number
    return p


cdef inline void point(Column* c, int64_t slot, const uint8_t* p, int64_t n, State* s) noexcept nogil:
    cdef int64_t place = p - s.origin
    put_view(
        c.data + 16 * slot, p, <int32_t>n, s.first_buffer + <int32_t>(place >> s.shift),
        <int32_t>(place & ((<int64_t>1 << s.shift) - 1)), s.safe,
    )


cdef inline int append(Column* c, int64_t slot, const uint8_t* p, int64_t n, const uint8_t* safe) noexcept nogil:
    cdef int trouble = make_room(c, n)
    if trouble:
        return trouble
    copy_bytes(c.data + c.used, p, n, safe)
    c.used += n
    c.offsets[slot + 1] = <int32_t>c.used
    return 0


cdef inline const uint8_t* read_string(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef const uint8_t* at = p
    cdef Column* c = it.column
    cdef int64_t n = 0
    cdef int64_t bad
    cdef int trouble
    cdef bint ascii
    p = read_count(it, p, s, &n)
    if p == NULL:
        return NULL
    if rare(n < 0):
        if c != NULL and write_null(c, slot):
            return refuse(s, NO_MEMORY, at)
        return p
    if rare(n > it.high or n > s.end - p):
        if n > 0x7FFF:
            return refuse(s, LENGTH, at)
        return refuse(s, TRUNCATED if n > s.end - p else RANGE, at)
    if it.code == STRING_TEXT:
        trouble = make_room(c, n)
        if trouble:
            return refuse(s, trouble, at)
        ascii = copy_ascii(c.data + c.used, p, n, s.safe)
        c.used += n
        c.offsets[slot + 1] = <int32_t>c.used
    else:
        ascii = all_ascii(p, n, s.safe)
        if it.code == STRING_VIEW:
            point(c, slot, p, n, s)
    if rare(not ascii):
        bad = not_utf8(p, n)
        if bad >= 0:
            if s.strict:
                return refuse(s, UTF8, p + bad)
            trouble = put_malformed(it, p, n, s, slot)
            if trouble:
                return refuse(s, trouble, at)
    return p + n


cdef inline int put_malformed(Instruction* it, const uint8_t* p, int64_t n, State* s, int64_t slot) noexcept nogil:
    """Write a string that is not UTF-8 as Java's decoder reads it; the input lacks those bytes, so a view needs a copy."""
    cdef Column* c = it.column
    cdef Column* texts = c
    cdef int64_t size
    cdef int trouble
    if it.code == STRING_PASS:
        return 0
    if it.code == STRING_VIEW:
        texts = &s.texts
    else:
        c.used -= n  # replaces the copy of the unchanged string
    size = as_java(NULL, p, n)
    trouble = make_room(texts, size)
    if trouble:
        return trouble
    # SAFETY: make_room has made `size` bytes and SLACK.
    as_java(texts.data + texts.used, p, n)
    texts.used += size
    if it.code == STRING_TEXT:
        c.offsets[slot + 1] = <int32_t>c.used
        return 0
    put_view(
        c.data + 16 * slot, texts.data + texts.used - size, <int32_t>size, s.constants, <int32_t>(texts.used - size),
        texts.data + texts.used,
    )
    return 0


cdef inline const uint8_t* read_bytes(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef const uint8_t* at = p
    cdef Column* c = it.column
    cdef int64_t n = 0
    cdef int trouble
    p = read_count(it, p, s, &n)
    if p == NULL:
        return NULL
    if rare(n < 0):
        if c != NULL and write_null(c, slot):
            return refuse(s, NO_MEMORY, at)
        return p
    if rare(n > s.end - p):
        return refuse(s, TRUNCATED, at)
    if it.code == BYTES_TEXT:
        trouble = append(c, slot, p, n, s.safe)
        if trouble:
            return refuse(s, trouble, at)
    elif it.code == BYTES_VIEW:
        point(c, slot, p, n, s)
    return p + n


cdef inline const uint8_t* quick_length(Instruction* it, const uint8_t* p, const uint8_t* end, int64_t* n) noexcept nogil:
    """A length in a varint of one byte, or in an int16, as nearly all are. -1 is null, -2 is any other."""
    n[0] = -2
    if it.length == LENGTH_COMPACT:
        if p < end and p[0] < 0x80:
            n[0] = <int64_t>p[0] - 1
            return p + 1
    elif it.length == LENGTH_INT16 and end - p >= 2:
        n[0] = <int16_t>load16(p) if p[0] < 0x80 else -2
        return p + 2
    return p


cdef inline const uint8_t* quick_string(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    """`read_string` for the plain case, without a call."""
    cdef Column* c = it.column
    cdef int64_t n = 0
    cdef const uint8_t* text = quick_length(it, p, s.end, &n)
    # SAFETY: as in read_string, which reads everything that is not plain.
    if 0 <= n <= it.high and n <= s.end - text:
        if it.code == STRING_TEXT:
            if c.used + n + SLACK <= c.room and copy_ascii(c.data + c.used, text, n, s.safe):
                c.used += n
                c.offsets[slot + 1] = <int32_t>c.used
                return text + n
        elif all_ascii(text, n, s.safe):
            if it.code == STRING_VIEW:
                point(c, slot, text, n, s)
            return text + n
    return read_string(it, p, s, slot)


cdef inline const uint8_t* quick_bytes(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    """`read_bytes` for the plain case, without a call."""
    cdef Column* c = it.column
    cdef int64_t n = 0
    cdef const uint8_t* data = p + 1
    if it.length == LENGTH_COMPACT and s.end - p >= 2:
        # SAFETY: as in read_bytes, which reads everything that is not plain.
        n = p[0]
        if n >= 0x80 and 0 < p[1] < 0x80:
            n = (n & 0x7F) | <int64_t>p[1] << 7
            data = p + 2
        n -= 1
        if 0 <= n <= s.end - data and (p[0] < 0x80 or data == p + 2):
            if it.code == BYTES_PASS:
                return data + n
            if it.code == BYTES_VIEW:
                point(c, slot, data, n, s)
                return data + n
            if c.used + n + SLACK <= c.room:
                copy_bytes(c.data + c.used, data, n, s.safe)
                c.used += n
                c.offsets[slot + 1] = <int32_t>c.used
                return data + n
    return read_bytes(it, p, s, slot)


cdef inline const uint8_t* read_bounded(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef int64_t number
    cdef int32_t narrow
    cdef Column* c = it.column
    if it.size == 1:
        number = <int8_t>p[0]
    elif it.size == 2:
        number = <int16_t>load16(p) if it.signed_ else load16(p)
    elif it.size == 4:
        number = <int32_t>load32(p) if it.signed_ else load32(p)
    else:
        number = <int64_t>load64(p)
    if not it.low <= number <= it.high:
        return refuse(s, RANGE, p)
    if c != NULL:
        if c.width == 1:
            (<int8_t*>c.data)[slot] = <int8_t>number
        elif c.width == 2:
            (<int16_t*>c.data)[slot] = <int16_t>number
        elif c.width == 4:
            (<int32_t*>c.data)[slot] = <int32_t>number
        else:
            (<int64_t*>c.data)[slot] = number
    return p + it.size


cdef inline const uint8_t* short_of(Walk* walk, int i, const uint8_t* p, State* s) noexcept nogil:
    """Record the refusal when the run of fixed widths that starts at instruction `i` needs more bytes than are left."""
    cdef Instruction* it
    while True:
        it = &walk.steps[i]
        if s.end - p < it.size:
            return refuse(s, TRUNCATED, p)
        if it.code == BOOLEAN and s.strict and p[0] > 1:
            return refuse(s, VALUE, p)
        if it.code == BOUNDED:
            # Without its column, because the frame is refused in any case.
            if not read_bounded_only(it, p, s):
                return NULL
        p += it.size
        i += 1


cdef inline bint read_bounded_only(Instruction* it, const uint8_t* p, State* s) noexcept nogil:
    cdef Instruction bare = it[0]
    bare.column = NULL
    return read_bounded(&bare, p, s, 0) != NULL


cdef inline const uint8_t* read_elements(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef const uint8_t* at = p
    cdef Column* c = it.column
    cdef Level* items
    cdef int64_t n = 0
    cdef int64_t i
    cdef int64_t first = 0
    cdef int trouble
    p = read_count(it, p, s, &n)
    if p == NULL:
        return NULL
    if n < 0:
        if c != NULL and write_null(c, slot):
            return refuse(s, NO_MEMORY, at)
        return p
    # Divided, not multiplied: a count of 2**31 times a size must not wrap.
    if rare(n > (s.end - p) // it.least):
        return refuse(s, TRUNCATED, at)
    if c != NULL:
        items = c.items
        first = items.length
        trouble = add_slots(items, n)
        if trouble:
            return refuse(s, trouble, at)
        c.offsets[slot + 1] = <int32_t>(first + n)
        if it.code == NUMBERS:
            # SAFETY: n times the width are left, `least` being the width, and n slots were added.
            copy_swapped(items.columns[0].data + first * it.size, p, n, it.size)
            return p + n * it.size
    elif it.code == NUMBERS:
        return p + n * it.size
    for i in range(first, first + n):
        p = walk_over(it.body, p, s, i)
        if p == NULL:
            return NULL
    return p


cdef inline const uint8_t* read_marked(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef const uint8_t* at = p
    cdef int64_t marker
    cdef uint32_t raw = 0
    cdef bint null
    if it.length == LENGTH_COMPACT:
        p = read_varint(p, s, &raw)
        if p == NULL:
            return NULL
        marker = raw
        # Kafka reads null from any marker that is not positive as a Java int.
        null = raw == 0 or (raw > 0x7FFFFFFF and not s.strict)
        if raw > 1 and s.strict:
            return refuse(s, VALUE, at)
    else:
        if s.end - p < 1:
            return refuse(s, TRUNCATED, at)
        marker = <int8_t>p[0]
        p += 1
        null = marker < 0
        if marker != 1 and marker != -1 and s.strict:
            return refuse(s, VALUE, at)
    if null:
        if it.column != NULL and write_null(it.column, slot):
            return refuse(s, NO_MEMORY, at)
        return p
    return walk_over(it.body, p, s, slot)


cdef inline const uint8_t* read_tags(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef const uint8_t* at = p
    cdef const uint8_t* tag_at
    cdef const uint8_t* size_at
    cdef const uint8_t* start
    cdef uint64_t seen = 0
    cdef int64_t previous = -1
    cdef uint32_t count = 0
    cdef uint32_t tag = 0
    cdef uint32_t size = 0
    cdef uint32_t n
    cdef int i
    cdef Tagged* known
    p = read_varint(p, s, &count)
    if p == NULL:
        return NULL
    if count > 0x7FFFFFFF and not s.strict:
        count = 0  # negative as a Java int: Kafka's loop over the tags does not start
    if <int64_t>count * 2 > s.end - p:
        return refuse(s, TRUNCATED, at)
    for n in range(count):
        tag_at = p
        p = read_varint(p, s, &tag)
        if p == NULL:
            return NULL
        size_at = p
        p = read_varint(p, s, &size)
        if p == NULL:
            return NULL
        if s.strict and <int64_t>tag <= previous:
            return refuse(s, TAG, tag_at)
        previous = tag
        known = NULL
        for i in range(it.n_tags):
            if it.tags[i].tag == tag:
                known = &it.tags[i]
                break
        if known == NULL:
            if size > s.end - p:
                return refuse(s, TRUNCATED, size_at)
            p += size
            continue
        if known.value == NULL:
            return refuse(s, TAG, tag_at)
        # In lenient mode a tag may occur twice; the last one counts.
        if seen >> i & 1 and known.column != NULL:
            take_back(known.column, slot)
        seen |= <uint64_t>1 << i
        start = p
        p = walk_over(known.value, p, s, slot)
        if p == NULL:
            return NULL
        if s.strict and p - start != size:
            return refuse(s, TAG, start)
    for i in range(it.n_tags):
        if not seen >> i & 1 and it.tags[i].absent != NULL:
            if walk_over(it.tags[i].absent, p, s, slot) == NULL:
                return NULL
    return p


cdef inline const uint8_t* write_default(Instruction* it, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    cdef Column* c = it.column
    cdef int trouble = 0
    if it.code == DEFAULT_EMPTY:
        write_empty(c, slot)
    elif it.code == DEFAULT_NULL:
        trouble = write_null(c, slot)
    elif it.code == DEFAULT_FIXED:
        if c.form == BITS:
            set_bit(c.data, slot)
        else:
            memcpy(c.data + slot * c.width, &it.fixed, c.width)
    elif c.form == TEXT:
        trouble = append(c, slot, it.text, it.n_text, it.text + it.n_text)
    else:
        put_view(c.data + 16 * slot, it.text, it.n_text, s.constants, it.place, it.text + it.n_text)
    return refuse(s, trouble, p) if trouble else p


cdef inline const uint8_t* walk_over(Walk* walk, const uint8_t* p, State* s, int64_t slot) noexcept nogil:
    """The byte after what the walk reads at `p` into the slot of its columns; NULL with the refusal recorded."""
    cdef Instruction* it
    cdef Column* c
    cdef Code code
    cdef int i
    for i in range(walk.n):
        it = &walk.steps[i]
        code = it.code
        c = it.column
        if rare(it.need > s.end - p):
            return short_of(walk, i, p, s)
        # SAFETY: `need` has confirmed the bytes of every fixed width up to LAST_FIXED.
        if code == STRING_TEXT or code == STRING_VIEW or code == STRING_PASS:
            p = quick_string(it, p, s, slot)
            if p == NULL:
                return NULL
        elif code == BYTES_TEXT or code == BYTES_VIEW or code == BYTES_PASS:
            p = quick_bytes(it, p, s, slot)
            if p == NULL:
                return NULL
        elif code == FIXED_4:
            (<uint32_t*>c.data)[slot] = load32(p)
            p += 4
        elif code == FIXED_2:
            (<uint16_t*>c.data)[slot] = load16(p)
            p += 2
        elif code == FIXED_8:
            (<uint64_t*>c.data)[slot] = load64(p)
            p += 8
        elif code == FIXED_1:
            c.data[slot] = p[0]
            p += 1
        elif code == PASS:
            p += it.size
        elif code == TAGS:
            if it.n_tags == 0 and p < s.end and p[0] == 0:
                p += 1
            else:
                p = read_tags(it, p, s, slot)
                if p == NULL:
                    return NULL
        elif code == ELEMENTS or code == NUMBERS:
            p = read_elements(it, p, s, slot)
            if p == NULL:
                return NULL
        elif code == BOOLEAN:
            if s.strict and p[0] > 1:
                return refuse(s, VALUE, p)
            if c != NULL:
                if p[0]:
                    set_bit(c.data, slot)
                else:
                    clear_bit(c.data, slot)
            p += 1
        elif code == UNSIGNED_2:
            (<int32_t*>c.data)[slot] = load16(p)
            p += 2
        elif code == UNSIGNED_4:
            (<int64_t*>c.data)[slot] = load32(p)
            p += 4
        elif code == BOUNDED:
            p = read_bounded(it, p, s, slot)
            if p == NULL:
                return NULL
        elif code == UUID_TEXT:
            if append(c, slot, p, 16, s.safe):
                return refuse(s, OVERFLOW if c.used > MOST - 16 else NO_MEMORY, p)
            p += 16
        elif code == UUID_VIEW:
            point(c, slot, p, 16, s)
            p += 16
        elif code == MARKED:
            p = read_marked(it, p, s, slot)
            if p == NULL:
                return NULL
        elif code == IF_MORE:
            if p != s.end:
                p = walk_over(it.body, p, s, slot)
            else:
                p = walk_over(it.absent, p, s, slot)
            if p == NULL:
                return NULL
        else:
            p = write_default(it, p, s, slot)
            if p == NULL:
                return NULL
    return p
