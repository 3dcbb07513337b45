/* UTF-8: where it is malformed, and what Java's decoder makes of it. Both native modules include this. */

#ifndef KCOORD_UTF8_H
#define KCOORD_UTF8_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define kcoord_outline __attribute__((noinline, cold, unused))
#else
#define kcoord_outline
#endif

/* The first byte of the first sequence that is not UTF-8, as Python's decoder counts it; -1 where all of it is. */
static kcoord_outline Py_ssize_t kcoord_not_utf8(const uint8_t *p, Py_ssize_t n) {
    Py_ssize_t i = 0;
    while (i < n) {
        uint8_t lead = p[i];
        Py_ssize_t more;
        if (lead < 0x80) {
            uint64_t word;
            while (n - i >= 8 && (memcpy(&word, p + i, 8), (word & 0x8080808080808080ULL) == 0)) i += 8;
            while (i < n && p[i] < 0x80) i++;
            continue;
        }
        if (lead < 0xC2 || lead > 0xF4) return i;
        more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if (n - i <= more) return i;
        /* The second byte's narrower bounds keep out overlong forms, surrogates and what lies above U+10FFFF. */
        if (p[i + 1] < (lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80)) return i;
        if (p[i + 1] > (lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF)) return i;
        if (more > 1 && (p[i + 2] & 0xC0) != 0x80) return i;
        if (more > 2 && (p[i + 3] & 0xC0) != 0x80) return i;
        i += more + 1;
    }
    return -1;
}

/* The length of the malformed sequence at p, as Java's String(byte[], UTF_8) counts it: a surrogate (ED A0 80) is one
   sequence of three bytes. CPython's decoder counts three sequences there, and agrees everywhere else. */
static kcoord_outline Py_ssize_t kcoord_malformed(const uint8_t *p, Py_ssize_t left) {
    uint8_t lead = p[0], low, high;
    if (lead < 0xE0 || lead > 0xF4 || left < 2) return 1;
    low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    high = lead == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 1;
    return left < 3 || (p[2] & 0xC0) != 0x80 ? 2 : 3;
}

/* Write the n bytes with a U+FFFD for each malformed sequence; how many bytes that takes, at most 3 * n.
   SAFETY: `to` must have room for them, or be NULL to count them only. */
static kcoord_outline Py_ssize_t kcoord_as_java(uint8_t *to, const uint8_t *p, Py_ssize_t n) {
    Py_ssize_t size = 0;
    while (n > 0) {
        Py_ssize_t good = kcoord_not_utf8(p, n), skipped;
        if (good < 0) good = n;
        if (to) memcpy(to + size, p, (size_t)good);
        size += good, p += good, n -= good;
        if (n == 0) break;
        if (to) memcpy(to + size, "\xEF\xBF\xBD", 3);
        size += 3;
        skipped = kcoord_malformed(p, n);
        p += skipped, n -= skipped;
    }
    return size;
}

#endif
