# cython: language_level=3
"""Instances made without calling their class: memory from the allocator, each slot stored once.

Laws: only classes that `check_layout` in native.pyx has accepted are made so (slots, no dict, no weak references, no base).
An instance is all NULL before its first slot is stored, so that it can be dropped at any point.
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.string cimport memset

cdef extern from *:
    """
    static inline PyObject *kcoord_new(PyTypeObject *cls) {
        PyObject *self;
        if (!PyType_IS_GC(cls)) {
            return cls->tp_alloc(cls, 0);
        }
        /* SAFETY: cls is a heap type with fixed size and without pre-header (no dict, no weakrefs): check_layout. The slots
           lie between the object's header and tp_basicsize. */
        self = PyObject_GC_New(PyObject, cls);
        if (self != NULL) {
            memset((char *)self + sizeof(PyObject), 0, cls->tp_basicsize - sizeof(PyObject));
        }
        return self;
    }
    """
    PyObject* kcoord_new(PyTypeObject*) noexcept
    void PyObject_GC_UnTrack(PyObject*) noexcept
    void PyObject_GC_Track(PyObject*) noexcept
    bint PyType_IS_GC(PyTypeObject*) noexcept


cdef inline PyObject** slot_of(PyObject* self, Py_ssize_t offset) noexcept nogil:
    # SAFETY: offset comes from the class's own member descriptor.
    return <PyObject**>(<char*>self + offset)
