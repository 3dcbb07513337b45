# cython: language_level=3
"""Writing a plan's values to a sink: each function returns 0, or -1 with the failure recorded (PYTHON: an exception is set).

Laws: room is made before anything is stored. A value is held while its writer may run Python code (__index__, __eq__),
because that code may remove it from its message.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches, PyErr_Occurred
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from capi cimport *
from cursor cimport *
from defaults cimport is_default
from plan cimport *
from reading cimport is_known
from sink cimport *
from slots cimport *


cdef inline int refuse(Sink* out, Kind kind, int64_t a, int64_t b) noexcept:
    out.failure.kind = kind
    out.failure.a = a
    out.failure.b = b
    return -1


cdef inline int python_failure(Sink* out, error) noexcept:
    """Set a caught exception again: the function that opened the sink raises it."""
    PyErr_SetObject(<PyObject*>Py_TYPE(<PyObject*>error), <PyObject*>error)
    return refuse(out, PYTHON, 0, 0)


cdef inline int write_value(Step* step, PyObject* value, Sink* out) noexcept:
    cdef Op op = step.op
    cdef int64_t number = 0
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
    return write_number(step, number, out) if read_number(value, out, step, &number) == 0 else -1


cdef inline int write_number(Step* step, int64_t number, Sink* out) noexcept:
    """Write an integer, for which the caller has made room."""
    if not step.low <= number <= step.high:
        return refuse(out, RANGE, step.low, step.high)
    if step.op == INT32 or step.op == UINT32:
        store32(out, <uint32_t>number)
    elif step.op == INT16 or step.op == UINT16:
        store16(out, <uint16_t>number)
    elif step.op == INT64:
        store64(out, <uint64_t>number)
    else:
        store8(out, <uint8_t>number)
    return 0


cdef inline int make_room(Sink* out, Py_ssize_t n) noexcept:
    return 0 if out.end - out.p >= n else grow_or_refuse(out, n)


cdef inline int grow_or_refuse(Sink* out, Py_ssize_t n) noexcept:
    try:
        grow(out, n)
    except BaseException as error:
        return python_failure(out, error)
    return 0


cdef inline int read_number(PyObject* value, Sink* out, Step* step, int64_t* number) noexcept:
    cdef int overflow = 0
    cdef long long small
    cdef PyObject* index
    if small_int(value, &small):
        number[0] = small
    elif LongCheck(value):
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
    return refuse(out, RANGE, step.low, step.high) if overflow else 0


cdef inline int write_float(PyObject* value, Sink* out) noexcept:
    cdef double number
    if FloatCheck(value):
        number = PyFloat_AS_DOUBLE(value)
    else:
        number = PyFloat_AsDouble(value)
        if number == -1.0 and PyErr_Occurred() != NULL:
            if PyErr_ExceptionMatches(TypeError):
                PyErr_Clear()
                return refuse(out, TYPE, FLOAT64, 0)
            if PyErr_ExceptionMatches(OverflowError):
                PyErr_Clear()
                return refuse(out, RANGE, 0, 0)
            return refuse(out, PYTHON, 0, 0)
    PyFloat_Pack8(number, <char*>out.p, 0)
    out.p += 8
    return 0


cdef inline int write_uuid(PyObject* value, Sink* out) noexcept:
    cdef PyObject* number
    cdef bytes raw
    if not PyObject_TypeCheck(value, UUID_CLASS):
        return refuse(out, TYPE, UUID, 0)
    if value == ZERO_UUID:
        store64(out, 0)
        store64(out, 0)
        return 0
    try:
        # SAFETY: the slot may be empty, or hold whatever object.__setattr__ stored: int.to_bytes checks type and size.
        number = slot_of(value, UUID_INT)[0]
        if number == NULL:
            raise AttributeError("int")
        raw = int.to_bytes(<object>number, 16, "big")
        store_raw(out, <const char*>raw, 16)
    except BaseException as error:
        return python_failure(out, error)
    return 0


cdef inline int write_length(Step* step, Sink* out, int64_t n) noexcept:
    """Write a length or count, -1 for null. The caller has made room for it."""
    if step.length == LENGTH_COMPACT:
        store_uvarint(out, <uint32_t>(n + 1))
    elif step.length == LENGTH_INT16:
        if n > 0x7FFF:
            return refuse(out, LENGTH, n, 0x7FFF)
        store16(out, <uint16_t>n)
    else:
        store32(out, <uint32_t>n)
    return 0


cdef inline int write_null(Step* step, Sink* out) noexcept:
    if not step.nullable:
        return refuse(out, NULL_VALUE, 0, 0)
    if make_room(out, MAX_UVARINT) < 0:
        return -1
    return write_length(step, out, -1)


cdef inline int write_string(Step* step, PyObject* value, Sink* out) noexcept:
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


cdef inline int write_bytes(Step* step, PyObject* value, Sink* out) noexcept:
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


cdef inline int write_run(Step* step, const char* data, Py_ssize_t n, Sink* out) noexcept:
    if n > 0x7FFFFFFF:
        return refuse(out, LENGTH, n, 0x7FFFFFFF)
    if make_room(out, MAX_UVARINT + n) < 0:
        return -1
    write_length(step, out, n)
    store_raw(out, data, n)
    return 0


cdef inline int write_array(Step* step, PyObject* array, Sink* out) noexcept:
    cdef bint is_list = ListCheck(array)
    cdef Py_ssize_t n
    cdef Py_ssize_t i
    cdef Py_ssize_t done
    cdef int result
    if array == Py_None:
        return write_null(step, out)
    if not is_list and not TupleCheck(array):
        return write_lazy_array(step, array, out)
    n = ListSize(array) if is_list else TupleSize(array)
    if n > 0x7FFFFFFF:
        return refuse(out, LENGTH, n, 0x7FFFFFFF)
    if make_room(out, MAX_UVARINT) < 0 or write_length(step, out, n) < 0:
        return -1
    done = 0
    if INT8 <= step.item.op <= UINT32:
        done = write_small_ints(step.item, array, n, is_list, out)
        if done < 0:
            return -1
    # SAFETY: an element's writer may run Python code (__index__, __eq__) that changes the list. The array and the current
    # element are held, and the size is checked again before each access.
    incref(array)
    result = 0
    for i in range(done, n):
        if is_list and ListSize(array) != n:
            result = refuse(out, TYPE, ARRAY, 1)
            break
        result = write_item(step.item, ListGet(array, i) if is_list else TupleGet(array, i), out)
        if result < 0:
            push_index(&out.failure, i)
            break
    decref(array)
    return result


cdef inline int write_lazy_array(Step* step, PyObject* array, Sink* out) noexcept:
    """Write the elements of what is neither a list nor a tuple."""
    try:
        items = stored_items(<object>array)
        return write_array(step, <PyObject*>items, out) if items is not None else refuse(out, TYPE, ARRAY, 0)
    except BaseException as error:
        return python_failure(out, error)


cdef inline Py_ssize_t write_small_ints(Step* item, PyObject* array, Py_ssize_t n, bint is_list, Sink* out) noexcept:
    """Write the array's integers up to the first that is not small; return their number, or -1 with the failure recorded.

    No Python code can run during this, so nothing has to be held.
    """
    cdef long long number
    cdef Py_ssize_t i
    # An integer's `min_size` is its exact size.
    if make_room(out, n * item.min_size) < 0:
        return -1
    for i in range(n):
        if not small_int(ListGet(array, i) if is_list else TupleGet(array, i), &number):
            return i
        if write_number(item, number, out) < 0:
            push_index(&out.failure, i)
            return -1
    return n


cdef inline int write_item(Step* item, PyObject* value, Sink* out) noexcept:
    cdef int result
    incref(value)
    if item.op == STRUCT:
        result = write_struct(item.struct_, value, out)
    else:
        result = write_value(item, value, out)
    decref(value)
    return result


cdef inline int write_nullable_struct(Step* step, PyObject* value, Sink* out) noexcept:
    if make_room(out, 1) < 0:
        return -1
    if value == Py_None:
        store8(out, 0 if step.length == LENGTH_COMPACT else 0xFF)
        return 0
    store8(out, 1)
    return write_struct(step.struct_, value, out)


cdef inline int write_union(Step* step, PyObject* value, Sink* out) noexcept:
    cdef int i
    for i in range(step.n_variants):
        if PyObject_TypeCheck(value, step.variants[i].struct_.cls):
            if make_room(out, 1) < 0:
                return -1
            store8(out, <uint8_t>step.variants[i].tag)
            return write_struct(step.variants[i].struct_, value, out)
    return refuse(out, TYPE, UNION, 0)


cdef inline int write_struct(Struct* s, PyObject* self, Sink* out) noexcept:
    """A struct whose values are plain: ints, ASCII, bytes, lists. At the first one that is not, `write_steps` goes on."""
    cdef Field* field = s.fields
    cdef PyObject* value
    cdef const void* data
    cdef uint8_t* p
    cdef long long number = 0
    cdef Py_ssize_t n
    cdef int result
    if Py_TYPE(self) != s.cls and not PyObject_TypeCheck(self, s.cls):
        return refuse(out, NULL_VALUE if self == Py_None else TYPE, STRUCT, 0)
    if make_room(out, s.room) < 0:
        return -1
    p = out.p
    # SAFETY: at each field there is room for it and those after it, but for the contents of strings, bytes and arrays
    # (`Field.room`): what writes these, or leaves that to other functions, makes room for the fields after it again.
    while True:
        if field.code <= FIELD_BYTES:
            value = slot_of(self, field.slot)[0]
            if value == Py_None:
                if not field.nullable:
                    break
                p = put_length(field, p, -1)
            else:
                if value == NULL:
                    break
                if field.code == FIELD_STRING:
                    if not PyUnicode_Check(value) or not PyUnicode_IS_COMPACT_ASCII(value):
                        break
                    data = PyUnicode_DATA(value)
                    n = PyUnicode_GET_LENGTH(value)
                    if n > 0x7FFF:
                        break
                else:
                    if not BytesCheck(value):
                        break
                    data = BytesData(value)
                    n = BytesSize(value)
                    if n > 0x7FFFFFFF:
                        break
                if out.end - p < MAX_UVARINT + n + field.room:
                    out.p = p
                    if make_room(out, MAX_UVARINT + n + field.room) < 0:
                        return -1
                    p = out.p
                p = put_length(field, p, n)
                memcpy(p, data, n)
                p += n
        elif field.code == FIELD_INT32S:
            value = slot_of(self, field.slot)[0]
            if value == NULL or not ListCheck(value):
                break
            out.p = p
            p = put_small_ints(field, value, out)
            if p == NULL:
                p = out.p
                break
        elif field.code <= FIELD_BOOL:
            value = slot_of(self, field.slot)[0]
            if field.code == FIELD_BOOL:
                if value != Py_True and value != Py_False:
                    break
                p[0] = value == Py_True
                p += 1
            elif value == NULL or not (small_int(value, &number) or large_int(value, &number)):
                break
            elif field.code == FIELD_INT32:
                if number != <int32_t>number:
                    break
                p = put32(p, <uint32_t>number)
            elif field.code == FIELD_INT64:
                p = put32(put32(p, <uint32_t>(number >> 32)), <uint32_t>number)
            elif field.code == FIELD_INT16:
                if number != <int16_t>number:
                    break
                p[0] = <uint8_t>(number >> 8)
                p[1] = <uint8_t>number
                p += 2
            else:
                if number != <int8_t>number:
                    break
                p[0] = <uint8_t>number
                p += 1
        elif field.code == FIELD_VALUE:
            value = slot_of(self, field.slot)[0]
            if value == NULL:
                break
            out.p = p
            # Held, because the writer may run Python code that stores into this slot.
            incref(value)
            result = write_value(&s.steps[field - s.fields], value, out)
            decref(value)
            if result < 0:
                push_attr(&out.failure, s.steps[field - s.fields].attr)
                return -1
            if make_room(out, field.room) < 0:
                return -1
            p = out.p
        elif field.code == FIELD_CONSTANT or field.code == FIELD_DEFAULT:
            # Not in this version: ignored, or its default, which nearly always is the same object.
            if not field.ignorable and (
                field.code == FIELD_DEFAULT or slot_of(self, field.slot)[0] != field.default_
            ):
                break
        elif field.code == FIELD_TAGS:
            if slot_of(self, s.tags_slot)[0] != NO_TAGS:
                break
            p[0] = 0
            out.p = p + 1
            return 0
        elif field.code == FIELD_END:
            if s.holds_tags and slot_of(self, s.tags_slot)[0] != NO_TAGS:
                break
            out.p = p
            return 0
        elif field.code != FIELD_TAGGED:
            break
        field += 1
    out.p = p
    return write_steps(s, self, field - s.fields, out)


cdef inline uint8_t* put_small_ints(Field* field, PyObject* array, Sink* out) noexcept:
    """Where the list of INT32 ends that was written at `out.p`, with room after it; NULL where a number is not of one digit."""
    cdef Py_ssize_t n = ListSize(array)
    cdef Py_ssize_t i
    cdef long long number = 0
    cdef uint8_t* p
    if n > 0x7FFFFFFF or out.end - out.p < MAX_UVARINT + 4 * n + field.room:
        return NULL
    p = put_length(field, out.p, n)
    for i in range(n):
        if not small_int(ListGet(array, i), &number):
            return NULL
        p = put32(p, <uint32_t>number)
    return p


cdef inline bint large_int(PyObject* value, long long* number) noexcept:
    """Whether a value is an int of 64 bits; no Python code runs."""
    cdef int overflow = 0
    if wide_int(value, number):
        return True
    if not LongCheck(value):
        return False
    number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return not overflow


# SAFETY: the caller has made room for 5 and 4 bytes.
cdef inline uint8_t* put_length(Field* field, uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Write a length that its form can hold, -1 for null."""
    cdef size_t rest = n + 1
    if field.length == LENGTH_COMPACT:
        while rest >= 0x80:
            p[0] = <uint8_t>(rest | 0x80)
            p += 1
            rest >>= 7
        p[0] = <uint8_t>rest
        return p + 1
    if field.length == LENGTH_INT16:
        p[0] = <uint8_t>(n >> 8)
        p[1] = <uint8_t>n
        return p + 2
    return put32(p, <uint32_t>n)


cdef inline uint8_t* put32(uint8_t* p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v
    return p + 4


cdef inline int write_steps(Struct* s, PyObject* self, int first, Sink* out) noexcept:
    """The fields of a struct from `first` on, whatever they hold."""
    cdef Step* step
    cdef PyObject* value
    cdef long long number = 0
    cdef int i
    cdef int result
    for i in range(first, s.n_steps):
        step = &s.steps[i]
        if step.presence == TAGGED or (step.presence == ABSENT and step.ignorable):
            continue
        value = slot_of(self, step.slot)[0]
        if value == NULL:
            result = refuse(out, TYPE, -1, 0)
        elif step.presence == PLAIN and INT8 <= step.op <= UINT32 and small_int(value, &number):
            result = 0 if make_room(out, 8) == 0 and write_number(step, number, out) == 0 else -1
        elif step.presence == PLAIN and step.op <= BYTES and is_inert(value):
            result = write_value(step, value, out)
        else:
            # Held, because the writer may run Python code that stores into this slot.
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


cdef inline int write_values(Struct* s, PyObject** values, Sink* out) noexcept:
    """Write a struct from the values of its fields, without an instance: plain ones alone, and no unknown tags."""
    cdef int i
    for i in range(s.n_steps):
        # What the version lacks is ignorable: a request header's client id.
        if s.steps[i].presence == PLAIN and write_value(&s.steps[i], values[i], out) < 0:
            return -1
    if s.flexible:
        if make_room(out, 1) < 0:
            return -1
        store8(out, 0)
    return 0


cdef inline int check_default(Step* step, PyObject* value, Sink* out) noexcept:
    try:
        return 0 if is_default(step, value) else refuse(out, VERSION, 0, 0)
    except BaseException as error:
        return python_failure(out, error)


cdef inline int write_tags(Struct* s, PyObject* self, Sink* out) noexcept:
    """Write the tag section; in a version without one, check that there is nothing to write in it."""
    cdef PyObject* held = slot_of(self, s.tags_slot)[0]
    cdef list unknown = None
    cdef int result = 0
    if s.drops_tags:
        return 0
    if held == NULL:
        result = refuse(out, TYPE, -1, 0)
    elif held != NO_TAGS:
        try:
            unknown = []
            result = check_tags(s, <object>held, unknown, out)
        except BaseException as error:
            result = python_failure(out, error)
    if result < 0:
        push_attr(&out.failure, TAGS_ATTR)
        return -1
    if not s.flexible:
        return 0
    if s.n_tagged == 0 and not unknown:
        if make_room(out, 1) < 0:
            return -1
        store8(out, 0)
        return 0
    return write_tagged_fields(s, self, unknown, out)


cdef inline int check_tags(Struct* s, tags, list checked, Sink* out) except? -1:
    """Append each (tag, bytes) of unknown_tags to `checked`; return -1 with the failure recorded if they may not be written."""
    cdef int64_t previous = -1
    tags = stored_items(tags)
    if tags is None:
        return refuse(out, TYPE, 0, 0)
    for pair in tags:
        pair = stored_items(pair)
        if pair is None or len(pair) != 2 or not isinstance(pair[0], int):
            return refuse(out, TYPE, 0, 0)
        tag, data = int.__pos__(pair[0]), stored_bytes(pair[1])
        if not 0 <= tag <= 0xFFFFFFFF or data is None:
            return refuse(out, TYPE, 0, 0)
        if tag <= previous or is_known(s, tag) or not s.flexible:
            return refuse(out, TAG, 0, 0)
        previous = tag
        checked.append((tag, data))
    return 0


cdef inline stored_items(value):
    """The items that a list, tuple or lazy array holds, regardless of what its class overrides; None for any other value."""
    if isinstance(value, list):
        return list.__getitem__(value, slice(None))
    if isinstance(value, tuple):
        return tuple.__getitem__(value, slice(None))
    for lazy_array in <list>LAZY_ARRAYS:
        if type(value) is lazy_array:  # `in` would run what a metaclass defines
            return list(value)
    return None


cdef inline stored_bytes(value):
    """The bytes of a bytes, bytearray or memoryview, regardless of what its class overrides; None for any other value."""
    if isinstance(value, bytes):
        return bytes.__getitem__(value, slice(None))
    return bytes(memoryview(value)) if isinstance(value, (bytearray, memoryview)) else None


cdef inline int write_tagged_fields(Struct* s, PyObject* self, list unknown, Sink* out) noexcept:
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


cdef inline int write_unknown(tuple pair, Sink* out) except -1:
    cdef uint32_t tag = pair[0]
    cdef bytes data = pair[1]
    cdef Py_ssize_t n = len(data)
    room(out, 2 * MAX_UVARINT + n)
    store_uvarint(out, tag)
    store_uvarint(out, <uint32_t>n)
    store_raw(out, <const char*>data, n)
    return 0


cdef inline int write_tagged(Step* step, PyObject* value, Sink* out) noexcept:
    """Return 1 if the field was written, 0 if it holds its default, -1 with the failure recorded."""
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
