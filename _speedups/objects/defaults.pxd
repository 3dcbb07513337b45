# cython: language_level=3
"""Defaults: making the value of a field that is not on the wire, and testing whether a field holds it."""

from cpython.object cimport Py_EQ, PyObject

from capi cimport *
from plan cimport *
from slots cimport *


cdef inline PyObject* finish_list(Step* item, PyObject* array) noexcept:
    """The list, tracked by the garbage collector if its items are structs: a caller may store any object in those."""
    if array != NULL and (item.op == STRUCT or item.op == UNION):
        PyObject_GC_Track(array)
    return array


cdef inline PyObject* make_default(Step* step) noexcept:
    """A new reference to the value of a field that is not on the wire."""
    if step.default_kind == CONSTANT:
        incref(step.default_)
        return step.default_
    if step.default_kind == EMPTY_LIST:
        return finish_list(step.item, new_list(0))
    return default_struct(step.struct_ if step.struct_ != NULL else step.variants[0].struct_)


cdef inline PyObject* default_struct(Struct* s) noexcept:
    cdef PyObject* self = new_cleared(s.cls)
    cdef PyObject* value
    cdef int i
    if self == NULL:
        return NULL
    for i in range(s.n_steps):
        value = make_default(&s.steps[i])
        if value == NULL:
            decref(self)
            return NULL
        slot_of(self, s.steps[i].slot)[0] = value
    if s.holds_tags:
        incref(NO_TAGS)
        slot_of(self, s.tags_slot)[0] = NO_TAGS
    if s.tracked:
        PyObject_GC_Track(self)
    return self


cdef inline int is_default(Step* step, PyObject* value) except -1:
    """Whether a value is the field's default. It may run Python code (a foreign __eq__): the caller holds `value`."""
    if step.default_kind == EMPTY_LIST:
        if ListCheck(value):
            return ListSize(value) == 0
        return TupleCheck(value) and TupleSize(value) == 0
    if step.default_kind == NEW_STRUCT:
        return is_default_struct(step.struct_ if step.struct_ != NULL else step.variants[0].struct_, value)
    if value == step.default_:
        return True
    if step.default_ == Py_None or value == Py_None:
        return False
    if step.op == UUID and Py_TYPE(value) == UUID_CLASS:
        return same_number(slot_of(value, UUID_INT)[0], slot_of(step.default_, UUID_INT)[0])
    return compare(value, step.default_)


cdef inline int same_number(PyObject* number, PyObject* default) except -1:
    if number == NULL:
        return False
    # Held, because object.__setattr__ can store any object there, and the __eq__ of that object can remove it.
    incref(number)
    try:
        return RichCompareBool(number, default, Py_EQ)
    finally:
        decref(number)


cdef inline int compare(PyObject* a, PyObject* b) except -1:
    return RichCompareBool(a, b, Py_EQ)


cdef inline int is_default_struct(Struct* s, PyObject* value) except -1:
    cdef PyObject* inner
    cdef int i
    cdef int same
    if Py_TYPE(value) != s.cls:
        return False
    for i in range(s.n_steps):
        inner = slot_of(value, s.steps[i].slot)[0]
        if inner == NULL:
            return False
        incref(inner)
        try:
            # Here an empty tuple does not equal the default list, as when the instances are compared in Python.
            same = ListCheck(inner) if s.steps[i].default_kind == EMPTY_LIST else True
            same = same and is_default(&s.steps[i], inner)
        finally:
            decref(inner)
        if not same:
            return False
    if s.holds_tags:
        inner = slot_of(value, s.tags_slot)[0]
        return inner != NULL and TupleCheck(inner) and TupleSize(inner) == 0
    return True
