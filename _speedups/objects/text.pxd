# cython: language_level=3
"""Reading text-encoded messages (schemas/README.md, "encoding"): tokens between separators, in the order of the steps.

Laws: only the plain form is read here: as many tokens as steps, integers of an optional minus sign and 1 to 18 digits within
their bounds, strings that are UTF-8 within theirs. For everything else, right or wrong, the result is NULL without an
exception, and the caller asks codec.text, which knows the rest of the rules and words the errors.
"""

from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcpy

from capi cimport *
from cursor cimport is_ascii
from plan cimport *
from slots cimport *

cdef enum:
    MAX_PLAIN_DIGITS = 18  # below 2**63 whatever they are
    MAX_TEXT = 0x7FFF


cdef inline PyObject* read_plain_text(Struct* s, const uint8_t* p, const uint8_t* end) noexcept:
    """A new instance from the tokens of `p` to `end`, or NULL: not the plain form, or with MemoryError set."""
    cdef PyObject* self = new_cleared(s.cls)
    cdef const uint8_t* stop
    cdef PyObject* value
    cdef int i
    if self == NULL:
        return NULL
    for i in range(s.n_steps):
        # SAFETY: p <= end: it starts there, and moves behind a separator that was found before `end`.
        stop = <const uint8_t*>memchr(p, b"/", end - p)
        if (stop == NULL) != (i == s.n_steps - 1):  # a separator behind every token but the last
            decref(self)
            return NULL
        if stop == NULL:
            stop = end
        if s.steps[i].op == STRING:
            value = plain_string(&s.steps[i], p, stop - p)
        else:
            value = plain_integer(&s.steps[i], p, stop)
        if value == NULL:
            decref(self)
            return NULL
        slot_of(self, s.steps[i].slot)[0] = value
        p = stop + 1
    if PyType_IS_GC(s.cls):
        PyObject_GC_Track(self)
    return self


cdef inline PyObject* plain_integer(Step* step, const uint8_t* p, const uint8_t* stop) noexcept:
    cdef bint negative = p < stop and p[0] == 0x2D  # "-"
    cdef int64_t number = 0
    cdef unsigned digit
    p += negative
    if not 1 <= stop - p <= MAX_PLAIN_DIGITS:
        return NULL
    while p < stop:
        digit = <unsigned>p[0] - 0x30  # wraps below "0"
        if digit > 9:
            return NULL
        number = 10 * number + <int>digit
        p += 1
    if negative:
        number = -number
    if not step.low <= number <= step.high:
        return NULL
    return new_int(number)


cdef inline PyObject* plain_string(Step* step, const uint8_t* p, Py_ssize_t n) noexcept:
    cdef PyObject* text
    if n > MAX_TEXT or n > step.high:
        return NULL
    if n > 1 and is_ascii(p, n):
        text = new_text(n)
        if text != NULL:
            # SAFETY: `text` has n bytes of its own, and the caller's bytes object does not change.
            memcpy(PyUnicode_DATA(text), p, n)
        return text
    text = PyUnicode_DecodeUTF8(<const char*>p, n, NULL)  # shares what is empty, or one character
    if text == NULL and PyErr_ExceptionMatches(UnicodeDecodeError):
        PyErr_Clear()
    return text
