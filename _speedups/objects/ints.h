/* The layout of CPython's int: a word with size and sign, then digits of PyLong_SHIFT bits.

   Digits are read of ints of one digit, and of positive ints of two. The words of positive ints are those of samples, made when
   the module is loaded: how each version of CPython packs size and sign is written nowhere. */

#ifndef KCOORD_INTS_H
#define KCOORD_INTS_H

#include <Python.h>

enum { KCOORD_DIGITS = 3 };  /* one more than any int has whose digits are read */

#if PY_VERSION_HEX >= 0x030C0000
#define KCOORD_TAG(value) (((PyLongObject *)(value))->long_value.lv_tag)
#define KCOORD_DIGIT(value) (((PyLongObject *)(value))->long_value.ob_digit)
static uintptr_t kcoord_tags[KCOORD_DIGITS];  /* by number of digits */
#else
#define KCOORD_TAG(value) Py_SIZE(value)
#define KCOORD_DIGIT(value) (((PyLongObject *)(value))->ob_digit)
static Py_ssize_t kcoord_tags[KCOORD_DIGITS];
#endif

/* Fills the table. Returns -1 with an exception set. */
static int kcoord_load_ints(void) {
    int digits;
    for (digits = 1; digits < KCOORD_DIGITS; digits++) {
        PyObject *sample = PyLong_FromLongLong(1LL << (digits * PyLong_SHIFT - 1));
        if (sample == NULL) return -1;
        kcoord_tags[digits] = KCOORD_TAG(sample);
        Py_DECREF(sample);
    }
    return 0;
}

/* An exact int of at most one digit, as nearly all numbers are. */
static inline int kcoord_small(PyObject *value, long long *number) {
    if (!PyLong_CheckExact(value)) return 0;
#if PY_VERSION_HEX >= 0x030C0000
    if (!PyUnstable_Long_IsCompact((PyLongObject *)value)) return 0;
    *number = PyUnstable_Long_CompactValue((PyLongObject *)value);
#else
    if (Py_SIZE(value) < -1 || Py_SIZE(value) > 1) return 0;
    *number = Py_SIZE(value) * (long long)KCOORD_DIGIT(value)[0];
#endif
    return 1;
}

/* An exact positive int of two digits, as offsets are. SAFETY: the word, that of such an int, says size and sign; two digits
   are 60 bits at most. */
static inline int kcoord_wide(PyObject *value, long long *number) {
    if (!PyLong_CheckExact(value) || KCOORD_TAG(value) != kcoord_tags[2]) return 0;
    *number = (long long)KCOORD_DIGIT(value)[1] << PyLong_SHIFT | KCOORD_DIGIT(value)[0];
    return 1;
}

#endif
