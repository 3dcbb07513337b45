# cython: language_level=3
"""The parts of Python's C API that the core uses, and the constants that reading and writing share.

References are PyObject* throughout, owned or borrowed as each function says, so that Cython adds no reference counting.
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uint8_t

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject*, void*) noexcept
    ctypedef int (*traverseproc)(PyObject*, visitproc, void*) noexcept
    PyObject* PyLong_FromLongLong(long long) noexcept
    PyObject* PyFloat_FromDouble(double) noexcept
    PyObject* PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*) noexcept
    PyObject* PyUnicode_New(Py_ssize_t, Py_UCS4) noexcept
    void* PyUnicode_DATA(PyObject*) noexcept
    bint PyUnicode_Check(PyObject*) noexcept
    bint PyUnicode_IS_COMPACT_ASCII(PyObject*) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject*) noexcept
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*) noexcept
    PyObject* BytesFromData "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) noexcept
    char* BytesData "PyBytes_AS_STRING"(PyObject*) noexcept
    Py_ssize_t BytesSize "PyBytes_GET_SIZE"(PyObject*) noexcept
    bint BytesCheck "PyBytes_Check"(PyObject*) noexcept
    bint BytesCheckExact "PyBytes_CheckExact"(PyObject*) noexcept
    bint ByteArrayCheck "PyByteArray_Check"(PyObject*) noexcept
    bint MemoryViewCheck "PyMemoryView_Check"(PyObject*) noexcept
    int GetBuffer "PyObject_GetBuffer"(PyObject*, Py_buffer*, int) noexcept
    PyObject* ListNew "PyList_New"(Py_ssize_t) noexcept
    void ListSet "PyList_SET_ITEM"(PyObject*, Py_ssize_t, PyObject*) noexcept
    PyObject* ListGet "PyList_GET_ITEM"(PyObject*, Py_ssize_t) noexcept
    Py_ssize_t ListSize "PyList_GET_SIZE"(PyObject*) noexcept
    bint ListCheck "PyList_Check"(PyObject*) noexcept
    PyObject* TupleGet "PyTuple_GET_ITEM"(PyObject*, Py_ssize_t) noexcept
    Py_ssize_t TupleSize "PyTuple_GET_SIZE"(PyObject*) noexcept
    bint TupleCheck "PyTuple_Check"(PyObject*) noexcept
    bint LongCheck "PyLong_Check"(PyObject*) noexcept
    bint FloatCheck "PyFloat_Check"(PyObject*) noexcept
    long long PyLong_AsLongLongAndOverflow(PyObject*, int*) noexcept
    double PyFloat_AsDouble(PyObject*) noexcept
    double PyFloat_AS_DOUBLE(PyObject*) noexcept
    PyObject* PyNumber_Index(PyObject*) noexcept
    int RichCompareBool "PyObject_RichCompareBool"(PyObject*, PyObject*, int) noexcept
    PyTypeObject* Py_TYPE(PyObject*) noexcept
    bint PyType_IsSubtype(PyTypeObject*, PyTypeObject*) noexcept
    bint PyObject_TypeCheck(PyObject*, PyTypeObject*) noexcept
    void incref "Py_INCREF"(PyObject*) noexcept
    void decref "Py_DECREF"(PyObject*) noexcept
    void xdecref "Py_XDECREF"(PyObject*) noexcept
    double PyFloat_Unpack8(const char*, int) noexcept
    int PyFloat_Pack8(double, char*, int) noexcept
    void PyErr_SetObject(PyObject*, PyObject*) noexcept
    PyObject* Py_None
    PyObject* Py_True
    PyObject* Py_False

cdef extern from "ints.h":
    bint small_int "kcoord_small"(PyObject*, long long*) noexcept
    bint wide_int "kcoord_wide"(PyObject*, long long*) noexcept
    int load_ints "kcoord_load_ints"() except -1

cdef extern from *:
    """
    /* SAFETY: called only with the member descriptors that __slots__ made; their PyMemberDef holds the slot's offset. */
    #include <structmember.h>
    static Py_ssize_t kcoord_member_offset(PyObject *descriptor) {
        return ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }
    static int kcoord_weak(PyTypeObject *cls) { return cls->tp_weaklistoffset != 0; }
    static int kcoord_dict(PyTypeObject *cls) { return cls->tp_dictoffset != 0; }
    /* Set when the module is loaded, never after. */
    static PyObject *kcoord_no_tags, *kcoord_tags_attr, *kcoord_zero_uuid, *kcoord_uuid_safety, *kcoord_lazy_arrays, *kcoord_no_text;
    static PyTypeObject *kcoord_uuid_class;
    static Py_ssize_t kcoord_uuid_int, kcoord_uuid_safe;
    /* Whether the value can be examined without running Python code. */
    static inline int kcoord_inert(PyObject *value) {
        return PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyBytes_CheckExact(value) || value == Py_None;
    }
    /* A pointer that threads read while another one replaces it: with a GIL, like any other. */
    #ifdef Py_GIL_DISABLED
    #define kcoord_load_pointer(at) _Py_atomic_load_ptr_acquire(at)
    #define kcoord_store_pointer(at, value) _Py_atomic_store_ptr_release(at, value)
    #define kcoord_load_size(at) _Py_atomic_load_ssize_relaxed(at)
    #define kcoord_store_size(at, value) _Py_atomic_store_ssize_relaxed(at, value)
    #else
    #define kcoord_load_pointer(at) (*(at))
    #define kcoord_store_pointer(at, value) (*(at) = (value))
    #define kcoord_load_size(at) (*(at))
    #define kcoord_store_size(at, value) (*(at) = (value))
    #endif
    static PyObject *kcoord_refuse(PyTypeObject *cls, PyObject *args, PyObject *kwargs) {
        (void)args, (void)kwargs;
        return PyErr_Format(PyExc_TypeError, "%s: only decode with lazy=True makes it", cls->tp_name);
    }
    static void kcoord_refuse_new(PyTypeObject *cls) {
        cls->tp_new = kcoord_refuse;
        cls->tp_vectorcall = NULL;  /* Cython fills it, to call tp_new without a tuple */
    }
    /* A memoryview of `n` bytes at `p`, which are among those of the memoryview `whole`: whole[i:j] without the slice object.

       SAFETY: `whole` is of single bytes of an object of the type bytes (codec.view.parts_of), so that nothing changes or frees
       them, and has one dimension. PyMemoryView_FromObject copies its Py_buffer with a shape of its own; memory_subscript
       in memoryobject.c changes the same three numbers. */
    static inline PyObject *kcoord_part(PyObject *whole, const unsigned char *p, Py_ssize_t n) {
    #ifdef Py_GIL_DISABLED
        /* Views of one view count their exports together, in 3.13 without atomics; those of an object each by itself. */
        whole = PyMemoryView_GET_BASE(whole);
    #endif
        PyObject *part = PyMemoryView_FromObject(whole);
        if (part != NULL) {
            Py_buffer *view = PyMemoryView_GET_BUFFER(part);
            view->buf = (void *)p;
            view->len = n;
            view->shape[0] = n;
        }
        return part;
    }
    /* SAFETY: called when the module is loaded, before the first instance. */
    static traverseproc kcoord_replace_traverse(PyTypeObject *cls, traverseproc function) {
        traverseproc replaced = cls->tp_traverse;
        cls->tp_traverse = function;
        return replaced;
    }
    static PyObject *kcoord_long_from_16(const unsigned char *p) { return _PyLong_FromByteArray(p, 16, 0, 0); }
    """
    Py_ssize_t kcoord_member_offset(PyObject*) noexcept
    bint kcoord_weak(PyTypeObject*) noexcept
    bint kcoord_dict(PyTypeObject*) noexcept
    PyObject* part_of "kcoord_part"(PyObject*, const uint8_t*, Py_ssize_t) noexcept
    PyObject* kcoord_long_from_16(const uint8_t*) noexcept
    bint is_inert "kcoord_inert"(PyObject*) noexcept
    traverseproc replace_traverse "kcoord_replace_traverse"(PyTypeObject*, traverseproc) noexcept  # the one before
    void refuse_new "kcoord_refuse_new"(PyTypeObject*) noexcept  # when Python code calls the class or its __new__
    PyObject* load_pointer "kcoord_load_pointer"(PyObject**) noexcept
    void store_pointer "kcoord_store_pointer"(PyObject**, PyObject*) noexcept
    Py_ssize_t load_size "kcoord_load_size"(Py_ssize_t*) noexcept
    void store_size "kcoord_store_size"(Py_ssize_t*, Py_ssize_t) noexcept
    PyObject* NO_TAGS "kcoord_no_tags"  # the empty tuple
    PyObject* NO_TEXT "kcoord_no_text"  # the empty string
    PyObject* TAGS_ATTR "kcoord_tags_attr"  # "unknown_tags"
    PyObject* ZERO_UUID "kcoord_zero_uuid"
    PyObject* LAZY_ARRAYS "kcoord_lazy_arrays"  # codec.lazy.LAZY_ARRAYS
    PyObject* UUID_SAFETY "kcoord_uuid_safety"
    PyTypeObject* UUID_CLASS "kcoord_uuid_class"
    Py_ssize_t UUID_INT "kcoord_uuid_int"  # offsets of uuid.UUID's two slots
    Py_ssize_t UUID_SAFE "kcoord_uuid_safe"


cdef inline int raise_current() except -1:
    """Raise the exception that is set."""
    return -1
