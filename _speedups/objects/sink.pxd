# cython: language_level=3
"""Writing: a growing buffer that becomes one bytes object.

Laws: `room` is called before every store. Small messages are built on the C stack and copied once; a large one is built in the
bytes object that is returned, which is private until then. What goes into a caller's bytearray is never built there, because a
value may run Python code that changes the bytearray, and because an error must leave it as it was: a large message is
built in a block that is kept from one call to the next, until `drop_kept`, and copied once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from cursor cimport Failure

cdef extern from "Python.h":
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t)
    char* _bytes_data "PyBytes_AS_STRING"(PyObject*)
    Py_ssize_t _bytes_size "PyBytes_GET_SIZE"(PyObject*)
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1

cdef enum:
    SMALL = 1024
    MAX_UVARINT = 5


cdef extern from *:
    """
    /* The block of the last large message that was written into a bytearray: one for the process. Who takes it has it alone. */
    static PyObject *kcoord_kept;
    static Py_ssize_t kcoord_max_kept;  /* bytes */
    #ifdef Py_GIL_DISABLED
    #define kcoord_swap_kept(block) ((PyObject *)_Py_atomic_exchange_ptr(&kcoord_kept, block))
    #else
    static PyObject *kcoord_swap_kept(PyObject *block) {
        PyObject *other = kcoord_kept;
        kcoord_kept = block;
        return other;
    }
    #endif
    static void kcoord_set_max_kept(Py_ssize_t most) { kcoord_max_kept = most; }
    /* Free the block that is kept. Returns its bytes. */
    static Py_ssize_t kcoord_drop_kept(void) {
        PyObject *block = kcoord_swap_kept(NULL);
        Py_ssize_t size = block == NULL ? 0 : (Py_ssize_t)sizeof(PyBytesObject) + PyBytes_GET_SIZE(block);
        Py_XDECREF(block);
        return size;
    }
    /* Whether the bytes are in the buffer, 0 where the offset is outside of it by now; -1 with BufferError or MemoryError set.
       SAFETY: no other code runs between the comparison and the copy, which ends where the buffer ends: with a GIL
       because PyByteArray_Resize runs none, without one because the object is locked. The lock may be given up while
       PyByteArray_Resize waits for it, hence the loop. */
    static int kcoord_copy_into(PyObject *buffer, Py_ssize_t offset, const void *data, Py_ssize_t n) {
        int result = 1;
    #ifdef Py_GIL_DISABLED
        Py_BEGIN_CRITICAL_SECTION(buffer);
    #endif
        while (result == 1 && n > PyByteArray_GET_SIZE(buffer) - offset) {
            if (offset > PyByteArray_GET_SIZE(buffer)) result = 0;
            else if (PyByteArray_Resize(buffer, offset + n) < 0) result = -1;
        }
        if (result == 1) memcpy(PyByteArray_AS_STRING(buffer) + offset, data, n);
    #ifdef Py_GIL_DISABLED
        Py_END_CRITICAL_SECTION();
    #endif
        return result;
    }
    """
    PyObject* swap_kept "kcoord_swap_kept"(PyObject*) noexcept
    Py_ssize_t max_kept "kcoord_max_kept"
    void set_max_kept "kcoord_set_max_kept"(Py_ssize_t) noexcept
    Py_ssize_t drop_kept "kcoord_drop_kept"() noexcept
    int copy_into "kcoord_copy_into"(PyObject*, Py_ssize_t, const void*, Py_ssize_t) except -1


cdef struct Sink:
    uint8_t* start
    uint8_t* p
    uint8_t* end
    PyObject* owner  # the bytes object written into; NULL while the stack buffer is in use
    bint keeps  # whether `owner` is kept for the next sink: the bytes are copied elsewhere
    Failure failure
    uint8_t small[SMALL]


cdef inline int open_sink(Sink* s, Py_ssize_t expected, bint keeps) except -1:
    s.failure.depth = 0
    s.owner = NULL
    s.keeps = keeps
    if expected <= SMALL:
        s.start = s.small
        s.end = s.start + SMALL
    else:
        if keeps:
            s.owner = swap_kept(NULL)
            if s.owner != NULL and _bytes_size(s.owner) < expected:
                Py_XDECREF(s.owner)
                s.owner = NULL
        if s.owner == NULL:
            s.owner = _new_bytes(NULL, expected)
        if s.owner == NULL:
            raise MemoryError
        s.start = <uint8_t*>_bytes_data(s.owner)
        s.end = s.start + _bytes_size(s.owner)
    s.p = s.start
    return 0


cdef inline int grow(Sink* s, Py_ssize_t n) except -1:
    cdef Py_ssize_t used = s.p - s.start
    cdef Py_ssize_t capacity = 2 * (s.end - s.start)
    cdef PyObject* block
    if capacity < used + n:
        capacity = used + n
    if s.owner == NULL or s.keeps:
        # SAFETY: a kept block may be another thread's, which _PyBytes_Resize refuses without a GIL.
        block = _new_bytes(NULL, capacity)
        if block == NULL:
            raise MemoryError
        memcpy(_bytes_data(block), s.start, used)
        Py_XDECREF(s.owner)
        s.owner = block
    else:
        # SAFETY: no other code holds this bytes object. On failure it is freed and owner is NULL: start again with no bytes.
        s.start = s.p = s.end = s.small
        _PyBytes_Resize(&s.owner, capacity)
    s.start = <uint8_t*>_bytes_data(s.owner)
    s.p = s.start + used
    s.end = s.start + capacity
    return 0


cdef inline int room(Sink* s, Py_ssize_t n) except -1:
    """Make room for `n` more bytes."""
    if s.end - s.p < n:
        grow(s, n)
    return 0


cdef inline void close_sink(Sink* s) noexcept:
    if s.keeps and s.owner != NULL and _bytes_size(s.owner) <= max_kept:
        s.owner = swap_kept(s.owner)
    Py_XDECREF(s.owner)
    s.owner = NULL


cdef inline bytes take_bytes(Sink* s):
    """The bytes written. The sink must not be used afterwards."""
    cdef Py_ssize_t used = s.p - s.start
    cdef bytes result
    if s.owner == NULL:
        return PyBytes_FromStringAndSize(<char*>s.start, used)
    _PyBytes_Resize(&s.owner, used)
    result = <bytes>s.owner
    close_sink(s)
    return result


# SAFETY: the stores write 1 to 8 bytes at p; every caller has made `room` for them. The position is moved before the bytes
# are written, through a copy: a uint8_t* may point into the sink, and the compiler would read it again after each byte.
cdef inline void store8(Sink* s, uint8_t v) noexcept nogil:
    cdef uint8_t* p = s.p
    s.p = p + 1
    p[0] = v


cdef inline void store16(Sink* s, uint16_t v) noexcept nogil:
    cdef uint8_t* p = s.p
    s.p = p + 2
    p[0] = <uint8_t>(v >> 8)
    p[1] = <uint8_t>v


cdef inline void store32(Sink* s, uint32_t v) noexcept nogil:
    cdef uint8_t* p = s.p
    s.p = p + 4
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v


cdef inline void store64(Sink* s, uint64_t v) noexcept nogil:
    store32(s, <uint32_t>(v >> 32))
    store32(s, <uint32_t>v)


cdef inline void store_uvarint(Sink* s, uint32_t v) noexcept nogil:
    cdef uint8_t* p = s.p
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    s.p = p + 1
    p[0] = <uint8_t>v


cdef inline void store_raw(Sink* s, const void* data, Py_ssize_t n) noexcept nogil:
    memcpy(s.p, data, n)
    s.p += n


cdef inline Py_ssize_t reserve_uvarint(Sink* s) except -1:
    """Leave room for a varint whose value is not known yet. Returns its place for `settle_uvarint`."""
    room(s, MAX_UVARINT)
    s.p += MAX_UVARINT
    return s.p - s.start


cdef inline void settle_uvarint(Sink* s, Py_ssize_t place, uint32_t value) noexcept nogil:
    """Write the reserved varint and close the gap between it and the bytes written since."""
    cdef uint8_t* body = s.start + place
    cdef Py_ssize_t n = s.p - body
    s.p = body - MAX_UVARINT
    store_uvarint(s, value)
    memmove(s.p, body, n)
    s.p += n
