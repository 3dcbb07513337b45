# cython: language_level=3
"""The rows of a batch: which message a frame holds, and how a frame that fails is handled.

Laws:

* A frame that fails half-way is taken back: its row is null, and what was written to its columns is cut off again.
* Consecutive frames of one message and version are walked side by side. The result is the same as one by one, because if any
  of them is not plain, all of them are read one by one.
* Headers are read as codec.headers does, with its exceptions.
"""

from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from arrow cimport *
from block cimport *
from build cimport *
from read cimport *
from cursor cimport TRAILING, TRUNCATED, VERSION, load16, load32

cdef enum:
    FEWEST = 4  # frames for which a block is worthwhile


cdef enum Form:
    REQUEST = 0
    RESPONSE = 1
    MESSAGE = 2
    PREFIXED = 3
    TYPED = 4


cdef struct Version:
    Walk* walk  # NULL until a row needs it
    bint tags_before  # the header has a tag section


cdef struct Message:
    int64_t key
    int64_t first
    int64_t n_versions
    Version* versions
    Level* rows
    Column* column  # NULL if none of its fields are kept
    uint8_t* present
    int64_t n_present
    int64_t filled


cdef struct Source:
    int64_t n
    int64_t offset
    const uint8_t* valid
    const int32_t* small
    const int64_t* large
    const uint8_t* views
    const uint8_t* data
    const void** buffers  # of views


cdef struct Refusal:
    int64_t row
    int64_t offset
    int kind


cdef struct Refusals:
    Refusal* first
    int64_t n
    int64_t room


# A decoder's messages, and how it reads rows.
cdef struct Decoding:
    Form form
    bint strict
    bint only_one  # one message for all keys
    int n_messages
    Message* messages
    uint16_t* route  # by key, as uint16: the message's number, from 1
    int old_header_key  # version 0 of this api has `old_header`
    int downgraded_key  # this api answers in version 0 with this error if it lacks the requested version (KIP-511)
    int downgraded_error
    Message head
    Walk* header
    Walk* old_header
    Walk* header_tags
    void* owner
    Walk* (*make_walk)(void*, Message*, int64_t) noexcept nogil  # with the owner; NULL if that fails


cdef inline int open_source(ArrowArray* a, Source* source, bint large, bint views) noexcept:
    source.n = a.length
    source.offset = a.offset
    source.valid = <const uint8_t*>a.buffers[0] if a.null_count != 0 else NULL
    source.small = NULL
    source.large = NULL
    source.views = NULL
    source.data = <const uint8_t*>&source.n  # a valid address; none of its bytes are read
    source.buffers = a.buffers
    if views:
        source.views = <const uint8_t*>a.buffers[1]
    else:
        if large:
            source.large = <const int64_t*>a.buffers[1]
        else:
            source.small = <const int32_t*>a.buffers[1]
        if a.buffers[2] != NULL:
            source.data = <const uint8_t*>a.buffers[2]
    return 0


cdef inline int64_t first_byte(const Source* source) noexcept nogil:
    if source.n == 0 or source.views != NULL:
        return 0
    return source.large[source.offset] if source.large != NULL else source.small[source.offset]


cdef inline int64_t input_bytes(const Source* source) noexcept nogil:
    """An upper bound of the frames' total size in bytes."""
    cdef int64_t total = 0
    cdef int64_t i
    if source.n == 0:
        return 0
    if source.large != NULL:
        return source.large[source.offset + source.n] - source.large[source.offset]
    if source.small != NULL:
        return source.small[source.offset + source.n] - source.small[source.offset]
    for i in range(source.offset, source.offset + source.n):
        total += (<const int32_t*>(source.views + 16 * i))[0]
    return total


cdef inline const uint8_t* frame_at(const Source* source, int64_t row, int64_t* size, State* s) noexcept nogil:
    """The start of the row's frame; NULL if the row is null."""
    cdef int64_t i = source.offset + row
    cdef const int32_t* view
    if source.valid != NULL and not source.valid[i >> 3] >> (i & 7) & 1:
        return NULL
    if source.small != NULL:
        size[0] = source.small[i + 1] - source.small[i]
        s.safe = source.data + source.small[source.offset + source.n]
        return source.data + source.small[i]
    if source.large != NULL:
        size[0] = source.large[i + 1] - source.large[i]
        s.safe = source.data + source.large[source.offset + source.n]
        return source.data + source.large[i]
    view = <const int32_t*>(source.views + 16 * i)
    size[0] = view[0]
    if view[0] <= 12:
        # The frame lies in the view itself, so its strings fit into views too: no view points here.
        s.safe = <const uint8_t*>(view + 1) + view[0]
        s.origin = <const uint8_t*>(view + 1)
        return <const uint8_t*>(view + 1)
    s.first_buffer = view[2]
    s.origin = <const uint8_t*>source.buffers[2 + view[2]]
    s.safe = s.origin + view[3] + view[0]
    return s.origin + view[3]


cdef inline bint note(Refusals* refusals, int64_t row, int64_t offset, int kind) noexcept nogil:
    """Record a refusal; True if memory is exhausted."""
    cdef Refusal* more
    if refusals.n == refusals.room:
        more = <Refusal*>resized(refusals.first, (2 * refusals.room + 64) * sizeof(Refusal))
        if more == NULL:
            return True
        refusals.first = more
        refusals.room = 2 * refusals.room + 64
    more = &refusals.first[refusals.n]
    more.row = row
    more.offset = offset
    more.kind = kind
    refusals.n += 1
    return False


cdef inline int open_message(Message* m, int64_t n) noexcept nogil:
    m.present = <uint8_t*>take_zeros(n // 8 + 1)
    if m.present == NULL or set_capacity(m.rows, n):
        return NO_MEMORY
    return 0


cdef inline void reach(Message* m, int64_t row) noexcept nogil:
    """Fill the rows before this one, so that this one is the next to write."""
    if m.filled < row:
        fill(m.rows, m.filled, row)
    m.filled = row + 1


cdef inline void mark(Message* m, int64_t row) noexcept nogil:
    set_bit(m.present, row)
    m.n_present += 1


cdef inline void settle(Message* m, Frames* f, bint fine) noexcept nogil:
    """Count the block's rows as read, or take them back."""
    cdef Column* c
    cdef int i
    cdef int j
    if fine:
        for j in range(f.n):
            mark(m, f.row + j)
        m.filled = f.row + f.n
        return
    take_back(m.column, f.row)
    for i in range(m.rows.n_columns):
        c = m.rows.columns[i]
        if c.valid != NULL:
            for j in range(f.n):
                set_bit(c.valid, f.row + j)
    m.filled = f.row


cdef inline void leave_empty(Message* m, int64_t row) noexcept nogil:
    """Take back what a failed frame has written in its row."""
    cdef int i
    take_back(m.column, row)
    for i in range(m.rows.n_columns):
        write_empty(m.rows.columns[i], row)


cdef inline void unread(Message* m, int64_t row) noexcept nogil:
    """Take back a message that was read, because of the bytes after it."""
    if m.column != NULL:
        m.present[row >> 3] &= ~(1 << (row & 7))
        m.n_present -= 1
        leave_empty(m, row)


cdef inline void limit_level(Level* level, int64_t size) noexcept nogil:
    cdef Column* c
    cdef int i
    for i in range(level.n_columns):
        c = level.columns[i]
        c.hint = min(c.hint, size)
        if c.items != NULL:
            c.items.hint = min(c.items.hint, size)
            limit_level(c.items, size)


cdef inline void reset_message(Message* m) noexcept nogil:
    abandon(m.rows)
    give_back(m.present)
    m.present = NULL
    m.n_present = 0
    m.filled = 0


cdef inline int read_rows(
    Decoding* d, const Source* source, State* s, Refusals* refusals, const int64_t* key_of, const int64_t* version_of
) noexcept nogil:
    """Read every row into its columns. Return 0, or the Trouble that ends the batch."""
    cdef int64_t row = 0
    cdef int64_t single = 0  # rows before this one are read one by one
    cdef int64_t size = 0
    cdef int64_t key = 0
    cdef int64_t version = 0
    cdef int trouble
    cdef Frames frames
    cdef const uint8_t* start
    if source.n == 0:
        return 0
    if open_message(&d.head, source.n):
        return NO_MEMORY
    while row < source.n:
        if row >= single and source.views == NULL:
            gather(d, source, s, &frames, row, key_of, version_of)
            if frames.n >= FEWEST:
                if read_block(d, &frames, s, source.n, 0 if key_of == NULL else key_of[row]):
                    row += frames.n
                    continue
                single = row + frames.n
        start = frame_at(source, row, &size, s)
        if start != NULL:
            s.end = start + size
            if key_of != NULL:
                key = key_of[row]
            if version_of != NULL:
                version = version_of[row]
            if d.form == REQUEST:
                trouble = read_request(d, start, s, row, source.n)
            elif d.form == RESPONSE:
                trouble = read_response(d, start, s, row, source.n, key, version)
            elif d.form == MESSAGE:
                trouble = read_message(d, start, s, row, source.n, key, version)
            elif d.form == PREFIXED:
                trouble = read_prefixed(d, start, s, row, source.n, key)
            else:
                trouble = read_typed(d, start, s, row, source.n)
            if rare(trouble):
                if trouble >= OVERFLOW:
                    return trouble
                if note(refusals, row, s.at - start, trouble):
                    return NO_MEMORY
        row += 1
    return 0

# ---- blocks: frames of one message at one version, side by side

# If anything in one of them is not plain, all of them are read one by one, which reports the failure.

cdef inline void gather(
    Decoding* d, const Source* source, State* s, Frames* f, int64_t row, const int64_t* key_of, const int64_t* version_of
) noexcept nogil:
    """Collect the frames from `row` on that have the message and version of the first; no frames if it has neither."""
    cdef const uint8_t* start
    cdef int64_t size = 0
    cdef int64_t last = min(source.n, row + BLOCK)
    cdef int64_t first = row
    cdef uint32_t word
    cdef uint32_t first_word = 0
    f.n = 0
    f.row = row
    while row < last:
        start = frame_at(source, row, &size, s)
        if start == NULL:
            return
        word = 0
        if d.form == REQUEST or d.form == RESPONSE:
            if size < 4:
                return
            if d.form == REQUEST:
                word = load32(start)
        elif d.form != MESSAGE:
            if size < 2:
                return
            word = load16(start)
        if f.n == 0:
            first_word = word
        elif word != first_word:
            return
        elif key_of != NULL and key_of[row] != key_of[first]:
            return
        elif version_of != NULL and version_of[row] != version_of[first]:
            return
        if f.n == 0:
            s.block_version = version_of[row] if version_of != NULL else 0
        f.p[f.n] = start
        f.end[f.n] = start + size
        f.n += 1
        row += 1

cdef inline bint read_block(Decoding* d, Frames* f, State* s, int64_t n, int64_t key) noexcept nogil:
    """Read the frames; False if they must be read one by one, in which case no column holds anything of them."""
    cdef Message* m
    cdef Version* v
    cdef Walk* walk
    cdef int64_t version = s.block_version
    cdef bint fine = True
    cdef int j
    if d.form == REQUEST:
        key = <int16_t>load16(f.p[0])
        version = <int16_t>load16(f.p[0] + 2)
    elif d.form == PREFIXED:
        version = <int16_t>load16(f.p[0])
    elif d.form == TYPED:
        key = <int16_t>load16(f.p[0])
    if d.form <= RESPONSE and (key == d.old_header_key or key == d.downgraded_key):
        return False  # only reading row by row has the rules of these keys
    m = NULL if key == INT64_MIN else message_of(d, key)
    if m == NULL:
        return False
    version -= m.first
    if not 0 <= version < m.n_versions:
        return False
    v = &m.versions[version]
    walk = walk_of(d, m, version)
    if walk == NULL:
        return False
    reach(&d.head, f.row)
    if d.form == REQUEST:
        fine = walk_block(d.header, f, s)
    elif d.form == RESPONSE:
        for j in range(f.n):
            (<uint32_t*>d.head.column.fields[0].data)[f.row + j] = load32(f.p[j])
            f.p[j] += 4
    elif d.form != MESSAGE:
        for j in range(f.n):
            (<uint16_t*>d.head.column.fields[0].data)[f.row + j] = load16(f.p[j])
            f.p[j] += 2
    if fine and v.tags_before and d.form <= RESPONSE:
        fine = walk_block(d.header_tags, f, s)
    if fine and m.column != NULL:
        if m.rows.capacity == 0 and open_message(m, n):
            return False
        reach(m, f.row)
    if fine:
        fine = walk_block(walk, f, s)
        if fine and d.strict:
            for j in range(f.n):
                fine = fine and f.p[j] == f.end[j]
        if m.column != NULL:
            settle(m, f, fine)
    settle(&d.head, f, fine)
    return fine

# ---- single rows: each function returns 0, the kind of the refusal (at `s.at`), or the Trouble

cdef inline Message* message_of(Decoding* d, int64_t key) noexcept nogil:
    cdef int index
    if d.only_one:
        return &d.messages[0]
    if key < -0x8000 or key > 0x7FFF:
        return NULL
    index = d.route[<uint16_t>key]
    return &d.messages[index - 1] if index else NULL

cdef inline Walk* walk_of(Decoding* d, Message* m, int64_t version) noexcept nogil:
    if rare(m.versions[version].walk == NULL):
        return d.make_walk(d.owner, m, version)
    return m.versions[version].walk

cdef inline int read_request(Decoding* d, const uint8_t* start, State* s, int64_t row, int64_t n) noexcept nogil:
    cdef Walk* header = d.header
    cdef const uint8_t* p
    cdef Message* m
    cdef int64_t version
    if rare(s.end - start >= 4 and load16(start) == d.old_header_key and load16(start + 2) == 0):
        header = d.old_header
    p = read_part(d, &d.head, header, start, s, row, n)
    if p == NULL:
        return s.kind
    m = message_of(d, <int16_t>load16(start))
    if m == NULL:
        return 0
    version = <int16_t>load16(start + 2) - m.first
    if rare(not 0 <= version < m.n_versions):
        s.at = start + 2
        return VERSION
    return read_rest(d, m, version, p, s, row, n, True)

cdef inline int read_response(
    Decoding* d, const uint8_t* start, State* s, int64_t row, int64_t n, int64_t key, int64_t version
) noexcept nogil:
    cdef Message* m
    if s.end - start >= 4:
        reach(&d.head, row)
        (<uint32_t*>d.head.column.fields[0].data)[row] = load32(start)
        mark(&d.head, row)
    m = message_of(d, key) if key != INT64_MIN and version != INT64_MIN else NULL
    if m == NULL or m.key != key:
        return 0
    if version and key == d.downgraded_key and s.end - start >= 6 and load16(start + 4) == d.downgraded_error:
        if m.first == 0 and read_rest(d, m, 0, start + 4, s, row, n, True) == 0:
            return 0
        if s.kind >= OVERFLOW:
            return s.kind
    version -= m.first
    s.at = start
    if not 0 <= version < m.n_versions:
        return VERSION
    if s.end - start < 4:
        return TRUNCATED
    return read_rest(d, m, version, start + 4, s, row, n, True)

cdef inline int read_message(
    Decoding* d, const uint8_t* start, State* s, int64_t row, int64_t n, int64_t key, int64_t version
) noexcept nogil:
    cdef Message* m = message_of(d, key)
    if m == NULL or version == INT64_MIN:
        return 0
    version -= m.first
    if not 0 <= version < m.n_versions:
        s.at = start
        return VERSION
    return read_rest(d, m, version, start, s, row, n, True)

cdef inline int read_prefixed(Decoding* d, const uint8_t* start, State* s, int64_t row, int64_t n, int64_t key) noexcept nogil:
    cdef Message* m = message_of(d, key)
    cdef int64_t version = 0
    cdef int64_t known
    if s.end - start >= 2:
        version = <int16_t>load16(start)
        note_version(d, start, row)
    if m == NULL:
        return 0
    s.at = start
    if s.end - start < 2:
        return TRUNCATED
    known = min(version, m.first + m.n_versions - 1) - m.first
    if known < 0:
        return VERSION
    # A newer version may only append fields: the bytes after ours are not read.
    return read_rest(d, m, known, start + 2, s, row, n, known == version - m.first)

cdef inline int read_typed(Decoding* d, const uint8_t* start, State* s, int64_t row, int64_t n) noexcept nogil:
    cdef Message* m
    s.at = start
    if s.end - start < 2:
        return TRUNCATED
    note_version(d, start, row)
    m = message_of(d, <int16_t>load16(start))
    if m == NULL:
        return 0
    if m.first > 0:
        return VERSION
    return read_rest(d, m, 0, start + 2, s, row, n, True)

cdef inline void note_version(Decoding* d, const uint8_t* start, int64_t row) noexcept nogil:
    reach(&d.head, row)
    (<uint16_t*>d.head.column.fields[0].data)[row] = load16(start)
    mark(&d.head, row)

cdef inline int read_rest(
    Decoding* d, Message* m, int64_t version, const uint8_t* p, State* s, int64_t row, int64_t n, bint whole
) noexcept nogil:
    """Read the rest of the header, if it has tags, and the message."""
    cdef Walk* walk = walk_of(d, m, version)
    if walk == NULL:
        s.kind = NO_MEMORY
        return NO_MEMORY
    if m.versions[version].tags_before and d.form <= RESPONSE:
        p = walk_over(d.header_tags, p, s, row)
        if p == NULL:
            return s.kind
    p = read_part(d, m, walk, p, s, row, n)
    if p == NULL:
        return s.kind
    if rare(p != s.end and whole and s.strict):
        unread(m, row)
        s.at = p
        return TRAILING
    return 0

cdef inline const uint8_t* read_part(
    Decoding* d, Message* m, Walk* walk, const uint8_t* p, State* s, int64_t row, int64_t n
) noexcept nogil:
    """Read into row `row` of the message's columns, or leave it empty."""
    if m.column == NULL:
        return walk_over(walk, p, s, row)
    if rare(m.rows.capacity == 0):
        if open_message(m, n):
            return refuse(s, NO_MEMORY, p)
    reach(m, row)
    p = walk_over(walk, p, s, row)
    if rare(p == NULL):
        leave_empty(m, row)
        return NULL
    mark(m, row)
    return p


cdef inline bint give_rows(Message* m, Batch* b, int64_t n, ArrowArray** to, bint fields) noexcept:
    """Hand over the message's column, or each field of the header."""
    cdef const uint8_t* present = <const uint8_t*>b.zeros
    cdef int i
    if m.rows.capacity:
        fill(m.rows, m.filled, n)
        present = NULL
        if m.n_present < n:
            present = <const uint8_t*>held(b.holder, m.present)
            m.present = NULL
            if present == NULL:
                return False
    if not fields:
        return give(m.column, to[0], b, n, present)
    for i in range(m.column.n_fields):
        if not give(m.column.fields[i], to[i], b, n, present):
            return False
    return True
