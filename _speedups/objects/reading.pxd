# cython: language_level=3
"""Reading a plan's values from a cursor: each function returns a new reference, or NULL with the failure recorded.

Laws: every length and count is compared with the bytes that are left before anything is allocated for it. Nothing is tracked
by the garbage collector before it is complete; a tree that fails half-way is dropped whole.
"""

from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches, PyErr_Occurred
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from capi cimport *
from cursor cimport *
from defaults cimport finish_list, make_default
from plan cimport *
from slots cimport *

cdef enum:
    LEAST_LAZY = 16  # structs in an array that is worth deferring (codec.lazy)

cdef extern from "utf8.h":
    Py_ssize_t as_java "kcoord_as_java"(uint8_t*, const uint8_t*, Py_ssize_t) noexcept nogil


cdef inline PyObject* read_value(Step* step, Cursor* c) noexcept:
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
    return new_int(number)


cdef inline bint read_length(Step* step, Cursor* c, int64_t* length) noexcept:
    """A length or count: -1 for null, else 0 or more. False with the failure recorded."""
    # Nearly all lengths are varints of one byte.
    if step.length == LENGTH_COMPACT and c.p < c.end and 0 < c.p[0] < 0x80:
        length[0] = c.p[0] - 1
        c.p += 1
        return True
    return read_any_length(step, c, length)


cdef inline bint read_any_length(Step* step, Cursor* c, int64_t* length) noexcept:
    cdef const uint8_t* at = c.p
    cdef uint32_t raw
    cdef int64_t n
    cdef bint nullable
    if step.length == LENGTH_COMPACT:
        if not read_uvarint(c, &raw):
            return False
        # Lenient: a Java int, as Kafka's readUnsignedVarint returns it, so that a length of 2**31 or more is negative.
        n = <int64_t>raw - 1 if c.strict else <int32_t>(raw - 1)
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
        nullable = step.nullable and step.presence != REMAINING
        if n < -1 and (c.strict or not nullable):
            fail(c, LENGTH, at, n, 0)
            return False
        if nullable:
            n = -1
        elif c.strict:
            fail(c, NULL_VALUE, at, 0, 0)
            return False
        else:
            n = 0
    length[0] = n
    return True


cdef inline PyObject* none() noexcept:
    incref(Py_None)
    return Py_None


cdef inline PyObject* read_string(Step* step, Cursor* c) noexcept:
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
    text = read_text(c, n)
    if text == NULL:
        return fail_utf8(c) if c.strict else read_malformed(c, n)
    c.p += n
    return text


cdef inline PyObject* read_text(Cursor* c, Py_ssize_t n) noexcept:
    """A new str of the next `n` bytes, which are UTF-8; or NULL with UnicodeDecodeError or MemoryError set.

    Bytes that other code may change meanwhile are copied first and checked in the copy: a str marked as ASCII that is not ASCII
    corrupts later operations on it. Others are checked first: the copy's last bytes are still on their way to the cache,
    and to read them back is a wait (SyncGroup of 100 assignments: 0.88 of the time without it).
    """
    cdef const uint8_t* p = c.p
    cdef uint8_t one
    cdef PyObject* copy
    cdef PyObject* text
    if n == 0:
        incref(NO_TEXT)
        return NO_TEXT
    if n == 1:
        one = p[0]
        return PyUnicode_DecodeUTF8(<const char*>&one, 1, NULL)
    if not c.shared and not is_ascii(p, n):
        return PyUnicode_DecodeUTF8(<const char*>p, n, NULL)
    text = new_text(n)
    if text == NULL:
        return NULL
    memcpy(PyUnicode_DATA(text), p, n)
    if not c.shared or is_ascii(<const uint8_t*>PyUnicode_DATA(text), n):
        return text
    decref(text)
    copy = BytesFromData(<const char*>p, n)
    if copy == NULL:
        return NULL
    text = PyUnicode_DecodeUTF8(BytesData(copy), n, NULL)
    decref(copy)
    return text


cdef inline PyObject* read_malformed(Cursor* c, Py_ssize_t n) noexcept:
    """A new str of the next `n` bytes, in which U+FFFD replaces malformed UTF-8, as the lenient reader does."""
    cdef PyObject* copy
    cdef PyObject* replaced
    cdef PyObject* text = NULL
    if not PyErr_ExceptionMatches(UnicodeDecodeError):
        return fail(c, PYTHON, c.p, 0, 0)
    PyErr_Clear()
    copy = BytesFromData(<const char*>c.p, n)
    replaced = BytesFromData(NULL, 3 * n)  # each byte becomes a U+FFFD of three bytes at most
    if copy != NULL and replaced != NULL:
        # SAFETY: `replaced` is private and has room for 3 * n bytes.
        text = PyUnicode_DecodeUTF8(
            BytesData(replaced), as_java(<uint8_t*>BytesData(replaced), <const uint8_t*>BytesData(copy), n), NULL
        )
    xdecref(copy)
    xdecref(replaced)
    if text == NULL:
        return fail(c, PYTHON, c.p, 0, 0)
    c.p += n
    return text


cdef inline PyObject* fail_utf8(Cursor* c) noexcept:
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


cdef inline PyObject* read_bytes(Step* step, Cursor* c) noexcept:
    cdef const uint8_t* at = c.p
    cdef int64_t n
    cdef PyObject* value
    if not read_length(step, c, &n):
        return NULL
    if n < 0:
        return none()
    if n > c.end - c.p:
        return fail(c, TRUNCATED, at, n, c.end - c.p)
    value = make_bytes(c, c.p, n)
    c.p += n
    return value


cdef inline PyObject* make_bytes(Cursor* c, const uint8_t* p, Py_ssize_t n) noexcept:
    """The `n` bytes at `p`, which are there: a bytes object or, where the caller wants that, a part of the input."""
    if n >= VIEWED and c.whole != NULL:
        return part_of(c.whole, p, n)
    return new_bytes(<const char*>p, n)


cdef inline PyObject* read_array(Step* step, Cursor* c) noexcept:
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
    if n >= LEAST_LAZY and c.defer != NULL and item.op >= STRUCT:
        array = c.defer(item, c, n)
        if array != NULL:
            return array
        if PyErr_Occurred() != NULL:
            return fail(c, PYTHON, at, 0, 0)
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
            drop_begun(array, i)
            return NULL
        ListSet(array, i, value)
    return finish_list(item, array)


cdef inline PyObject* read_nullable_struct(Step* step, Cursor* c) noexcept:
    cdef bint present
    if not read_marker(step, c, &present):
        return NULL
    return read_struct(step.struct_, c) if present else none()


cdef inline bint read_marker(Step* step, Cursor* c, bint* present) noexcept:
    """Whether a nullable struct follows. False with the failure recorded."""
    cdef const uint8_t* at = c.p
    cdef int64_t marker
    cdef uint32_t raw
    if step.length == LENGTH_COMPACT:
        if not read_uvarint(c, &raw):
            return False
        marker = <int64_t>raw
        if marker > 1 and c.strict:
            fail(c, VALUE, at, marker, 0)
            return False
        # Kafka reads null from any marker that is not positive as a Java int.
        present[0] = not (marker == 0 or (marker > 0x7FFFFFFF and not c.strict))
        return True
    if not need(c, 1):
        return False
    marker = <int8_t>c.p[0]
    c.p += 1
    if marker != 1 and marker != -1 and c.strict:
        fail(c, VALUE, at, marker, 0)
        return False
    present[0] = marker >= 0
    return True


cdef inline PyObject* read_union(Step* step, Cursor* c) noexcept:
    cdef Struct* s = read_variant(step, c)
    return read_struct(s, c) if s != NULL else NULL


cdef inline Struct* read_variant(Step* step, Cursor* c) noexcept:
    """Which struct of a union follows. NULL with the failure recorded."""
    cdef const uint8_t* at = c.p
    cdef int tag
    cdef int i
    if not need(c, 1):
        return NULL
    tag = <int8_t>c.p[0]
    c.p += 1
    for i in range(step.n_variants):
        if step.variants[i].tag == tag:
            return step.variants[i].struct_
    fail(c, VALUE, at, tag, 0)
    return NULL


cdef inline PyObject* read_uuid(Cursor* c) noexcept:
    cdef PyObject* self
    cdef PyObject* number
    if not need(c, 16):
        return NULL
    number = kcoord_long_from_16(c.p)
    self = new_cleared(UUID_CLASS) if number != NULL else NULL
    if self == NULL:
        xdecref(number)
        return fail(c, PYTHON, c.p, 0, 0)
    c.p += 16
    slot_of(self, UUID_INT)[0] = number
    incref(UUID_SAFETY)
    slot_of(self, UUID_SAFE)[0] = UUID_SAFETY
    return self


cdef inline PyObject* read_struct(Struct* s, Cursor* c) noexcept:
    """A struct whose fields are in their usual form; at the first one that is not, `read_steps` goes on."""
    cdef PyObject* self = new_unset(s.cls)
    cdef Field* field = s.fields
    cdef PyObject* value
    cdef const uint8_t* p = c.p
    cdef const uint8_t* at
    cdef Py_ssize_t left
    cdef Py_ssize_t n
    cdef uint8_t byte
    if self == NULL:
        return fail(c, PYTHON, p, 0, 0)
    if c.end - p < s.need:
        return read_steps(s, self, 0, c)
    # SAFETY: at each field, the bytes that it and those after it take without another look are left (`Field.need`): the
    # struct's first were compared above, and whatever passes over a number of bytes that the plan does not give compares again.
    while True:
        if field.code <= FIELD_INT32S:
            at = p
            n = usual_length(field, &at, c.end)
            left = c.end - at - <Py_ssize_t>field.need
            if n < -1 or left < 0:
                break
            if n == -1:
                value = none()
                p = at
            elif field.code == FIELD_STRING:
                if n > left or n > 0x7FFF:
                    break
                c.p = at
                value = read_text(c, n)
                if value == NULL:
                    PyErr_Clear()
                    break
                p = at + n
            elif field.code == FIELD_BYTES:
                if n > left:
                    break
                value = make_bytes(c, at, n)
                p = at + n
            else:
                if n > left // 4:
                    break
                value = read_int32s(at, n)
                p = at + 4 * n
        elif field.code == FIELD_INT32:
            value = new_int(<int32_t>load32(p))
            p += 4
        elif field.code == FIELD_INT16:
            value = new_int(<int16_t>load16(p))
            p += 2
        elif field.code == FIELD_INT64:
            value = new_int(<int64_t>load64(p))
            p += 8
        elif field.code == FIELD_INT8:
            value = new_int(<int8_t>p[0])
            p += 1
        elif field.code == FIELD_BOOL:
            byte = p[0]
            if byte > 1:
                break
            p += 1
            value = Py_True if byte else Py_False
            incref(value)
        elif field.code == FIELD_VALUE:
            c.p = p
            value = read_value(&s.steps[field - s.fields], c)
            p = c.p
            if value != NULL and c.end - p < field.need:
                slot_of(self, field.slot)[0] = value
                field += 1
                break
        elif field.code == FIELD_CONSTANT:
            value = field.default_
            incref(value)
        elif field.code == FIELD_DEFAULT:
            value = make_default(&s.steps[field - s.fields])
        elif field.code == FIELD_TAGGED:
            slot_of(self, field.slot)[0] = NULL
            field += 1
            continue
        elif field.code == FIELD_REST or (field.code == FIELD_TAGS and p[0] != 0):
            break
        else:
            c.p = p + s.flexible
            return finish_struct(s, self)
        if value == NULL:
            c.p = p
            push_attr(&c.failure, s.steps[field - s.fields].attr)
            drop_half_read(s, self, field - s.fields)
            return NULL
        slot_of(self, field.slot)[0] = value
        field += 1
    c.p = p
    return read_steps(s, self, field - s.fields, c)


cdef inline Py_ssize_t usual_length(Field* field, const uint8_t** at, const uint8_t* end) noexcept nogil:
    """The length at `at`, whose first bytes are there, -1 for null; less where only `read_length` can tell what it is."""
    cdef const uint8_t* p = at[0]
    cdef Py_ssize_t n
    cdef Py_ssize_t high
    if field.length == LENGTH_COMPACT:
        n = p[0]
        p += 1
        if n >= 0x80:
            # Of the assignments in SyncGroup most take more than 127 bytes, nearly none more than 16,383.
            if p == end:
                return -2
            high = p[0]
            p += 1
            if not 0 < high < 0x80:
                return -2
            n = (n & 0x7F) | (high << 7)
        n -= 1
    elif field.length == LENGTH_INT16:
        n = <int16_t>load16(p)
        p += 2
    else:
        n = <int32_t>load32(p)
        p += 4
    at[0] = p
    return n if n >= 0 or field.nullable else -2


cdef inline PyObject* read_int32s(const uint8_t* p, Py_ssize_t n) noexcept:
    """A list of `n` numbers, whose bytes are there."""
    cdef PyObject* array = new_list(n)
    cdef PyObject* value
    cdef Py_ssize_t i
    if array == NULL:
        return NULL
    for i in range(n):
        value = new_int(<int32_t>load32(p + 4 * i))
        if value == NULL:
            drop_begun(array, i)
            return NULL
        ListSet(array, i, value)
    return array


cdef inline PyObject* read_steps(Struct* s, PyObject* self, int first, Cursor* c) noexcept:
    """The struct whose fields before `first` are read: the others in any form, or what is wrong with them."""
    cdef Step* step
    cdef PyObject* value
    cdef int i
    for i in range(first, s.n_steps):
        step = &s.steps[i]
        if step.presence == PLAIN:
            # Small messages consist of these two: they are read without a call in between.
            if step.op == STRING:
                value = read_string(step, c)
            elif step.op == BYTES:
                value = read_bytes(step, c)
            else:
                value = read_value(step, c)
        elif step.presence == TAGGED:
            slot_of(self, step.slot)[0] = NULL
            continue
        elif step.presence == REMAINING and c.p < c.end:
            value = read_value(step, c)
        else:
            value = make_default(step)
        if value == NULL:
            push_attr(&c.failure, step.attr)
            drop_half_read(s, self, i)
            return NULL
        slot_of(self, step.slot)[0] = value
    if s.flexible and (s.n_tagged or c.p == c.end or c.p[0] != 0):
        if not read_tags(s, self, c):
            drop_half_read(s, self, s.n_steps)
            return NULL
        if s.tracked:
            PyObject_GC_Track(self)
        return self
    c.p += s.flexible  # an empty tag section
    return finish_struct(s, self)


cdef inline PyObject* read_root(Struct* s, Cursor* c) noexcept:
    """A message or a header. Each of its fields comes once: the steps are as fast there (heartbeat: 2 to 5 % faster)."""
    cdef PyObject* self = new_unset(s.cls)
    return read_steps(s, self, 0, c) if self != NULL else fail(c, PYTHON, c.p, 0, 0)


cdef inline PyObject* finish_struct(Struct* s, PyObject* self) noexcept:
    """The struct, without unknown tags, tracked by the garbage collector if it holds structs or lists of them."""
    if s.holds_tags:
        incref(NO_TAGS)
        slot_of(self, s.tags_slot)[0] = NO_TAGS
    if s.tracked:
        PyObject_GC_Track(self)
    return self


cdef inline void drop_half_read(Struct* s, PyObject* self, int n_read) noexcept:
    """Drop an instance with only its first `n_read` slots set, and its unknown tags unset."""
    cdef int i
    for i in range(n_read, s.n_steps):
        slot_of(self, s.steps[i].slot)[0] = NULL
    if s.holds_tags:
        slot_of(self, s.tags_slot)[0] = NULL
    decref(self)


cdef inline bint read_tags(Struct* s, PyObject* self, Cursor* c) noexcept:
    """Read the tag section: known fields into their slots, the others unchanged into unknown_tags."""
    cdef const uint8_t* at = c.p
    cdef uint32_t count
    cdef PyObject* tags = NO_TAGS
    cdef PyObject* value
    cdef int i
    if not read_uvarint(c, &count):
        push_attr(&c.failure, TAGS_ATTR)
        return False
    if count > 0x7FFFFFFF and not c.strict:
        count = 0  # negative as a Java int: Kafka's loop over the tags does not start
    if <int64_t>count * 2 > c.end - c.p:
        fail(c, TRUNCATED, at, <int64_t>count * 2, c.end - c.p)
        push_attr(&c.failure, TAGS_ATTR)
        return False
    if count:
        tags = read_tagged_fields(s, self, c, count)
        if tags == NULL:
            return False
    else:
        incref(tags)
    for i in range(s.n_tagged):
        if slot_of(self, s.tagged[i].slot)[0] == NULL:
            value = make_default(s.tagged[i])
            if value == NULL:
                decref(tags)
                fail(c, PYTHON, c.p, 0, 0)
                return False
            slot_of(self, s.tagged[i].slot)[0] = value
    slot_of(self, s.tags_slot)[0] = tags
    return True


cdef inline PyObject* read_tagged_fields(Struct* s, PyObject* self, Cursor* c, uint32_t count) noexcept:
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
            # In lenient mode a tag may occur twice; the last one counts.
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


cdef inline Step* tagged_step(Struct* s, uint32_t tag) noexcept nogil:
    cdef int i
    for i in range(s.n_tagged):
        if <uint32_t>s.tagged[i].tag == tag:
            return s.tagged[i]
    return NULL


cdef inline bint is_known(Struct* s, int64_t tag) noexcept nogil:
    cdef int i
    for i in range(s.n_known):
        if s.known_tags[i] == tag:
            return True
    return False
