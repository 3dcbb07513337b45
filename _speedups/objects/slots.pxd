# cython: language_level=3
"""Instances made without calling their class: memory from a pool or the allocator, each slot stored once.

Laws: only two kinds of class are made this way: those that `check_layout` in native.pyx has accepted (slots, no dict, no weak
references, no base), and uuid.UUID, whose slot for weak references is cleared like the others.
An instance may be dropped only when each slot holds a reference or NULL: code that stops half-way clears the rest first. Until
then no other code can reach it, because it is not tracked.
"""

from cpython.object cimport PyObject, PyTypeObject

cdef extern from "pools.h":
    const bint POOLS_BY_DEFAULT "KCOORD_POOLS_BY_DEFAULT"
    void adopt "kcoord_adopt"(PyTypeObject* cls, PyTypeObject* plain) noexcept
    Py_ssize_t trim_pools "kcoord_trim"() noexcept
    void set_pool_ceiling "kcoord_set_pool_ceiling"(Py_ssize_t) noexcept
    void age_pools "kcoord_age_pools"() noexcept  # before each message
    int load_pools "kcoord_load_pools"() except -1
    PyObject* new_int "kcoord_new_int"(long long) noexcept
    PyObject* new_text "kcoord_new_text"(Py_ssize_t) noexcept  # an ASCII str of at least 2 bytes, to be filled
    PyObject* new_bytes "kcoord_new_bytes"(const char*, Py_ssize_t) noexcept
    PyObject* new_list "kcoord_new_list"(Py_ssize_t) noexcept  # of unset items, untracked until `finish_list`
    void drop_begun "kcoord_drop_begun"(PyObject*, Py_ssize_t) noexcept  # a list with only its first items set

cdef extern from *:
    """
    /* SAFETY: cls is a heap type with fixed size and without pre-header (no dict, no managed weakrefs). The slots lie
       between the object's header and tp_basicsize. */
    static inline PyObject *kcoord_new_unset(PyTypeObject *cls) {
        PyObject *self = kcoord_new_pooled(cls);
        if (self != NULL) return self;
        return PyType_IS_GC(cls) ? PyObject_GC_New(PyObject, cls) : cls->tp_alloc(cls, 0);
    }
    static inline PyObject *kcoord_new_cleared(PyTypeObject *cls) {
        PyObject *self = kcoord_new_unset(cls);
        if (self != NULL) {
            memset((char *)self + sizeof(PyObject), 0, cls->tp_basicsize - sizeof(PyObject));
        }
        return self;
    }
    """
    PyObject* new_unset "kcoord_new_unset"(PyTypeObject*) noexcept  # each slot still has to be set
    PyObject* new_cleared "kcoord_new_cleared"(PyTypeObject*) noexcept  # each slot is NULL
    void PyObject_GC_UnTrack(PyObject*) noexcept
    void PyObject_GC_Track(PyObject*) noexcept
    bint PyType_IS_GC(PyTypeObject*) noexcept


cdef inline PyObject** slot_of(PyObject* self, Py_ssize_t offset) noexcept nogil:
    # SAFETY: offset comes from the class's own member descriptor.
    return <PyObject**>(<char*>self + offset)
