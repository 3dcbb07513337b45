/* What the column decoder says in C: Arrow's C Data Interface, and the loops that look at 32 bytes of text at a time. */

#ifndef KCOORD_COLUMNS_H
#define KCOORD_COLUMNS_H

#include "utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__GNUC__)
#define kcoord_rare(x) __builtin_expect(!!(x), 0)
#define kcoord_less_one(refs) __atomic_sub_fetch((refs), 1, __ATOMIC_ACQ_REL)
#define kcoord_enter(lock) (!__atomic_test_and_set((lock), __ATOMIC_ACQUIRE))
#define kcoord_leave(lock) __atomic_clear((lock), __ATOMIC_RELEASE)
typedef char kcoord_lock;
#else
#include <intrin.h>
#define kcoord_rare(x) (x)
#define kcoord_less_one(refs) (_InterlockedExchangeAdd64((refs), -1) - 1)
#define kcoord_enter(lock) (!_InterlockedExchange((lock), 1))
#define kcoord_leave(lock) _InterlockedExchange((lock), 0)
typedef long kcoord_lock;
#endif

/* https://arrow.apache.org/docs/format/CDataInterface.html */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif

/* Blocks of memory. Large ones that are given back are kept for the next batch, up to KCOORD_KEPT_BYTES in all: fresh pages
   cost as much as decoding into them (JoinGroup requests of 500 bytes, `python -m tests.bench.columns`). A thread that finds the
   lock taken calls malloc: no thread waits, not even after a fork. */
enum { KCOORD_KEPT = 96, KCOORD_KEPT_LEAST = 1 << 15, KCOORD_KEPT_BYTES = 1 << 25, KCOORD_BEFORE = 64 };
static struct { void *block; size_t size; } kcoord_kept[KCOORD_KEPT];
static int kcoord_n_kept;
static size_t kcoord_kept_bytes;
static kcoord_lock kcoord_kept_lock;

/* SAFETY: only for what kcoord_take returned: the size is stored KCOORD_BEFORE bytes before it. */
static inline size_t kcoord_size(const void *block) {
    size_t size;
    memcpy(&size, (const char *)block - KCOORD_BEFORE, sizeof size);
    return size;
}

/* A block of at least that many bytes, and at most twice as many; NULL where memory is out. */
static void *kcoord_take(size_t size) {
    char *block = NULL;
    if (size >= KCOORD_KEPT_LEAST && kcoord_enter(&kcoord_kept_lock)) {
        int i, best = -1;
        for (i = 0; i < kcoord_n_kept; i++)
            if (kcoord_kept[i].size >= size && kcoord_kept[i].size / 2 <= size
                && (best < 0 || kcoord_kept[i].size < kcoord_kept[best].size)) best = i;
        if (best >= 0) {
            block = kcoord_kept[best].block;
            kcoord_kept_bytes -= kcoord_kept[best].size;
            kcoord_kept[best] = kcoord_kept[--kcoord_n_kept];
        }
        kcoord_leave(&kcoord_kept_lock);
        if (block) return block;
    }
    block = size > (size_t)-1 / 2 ? NULL : malloc(size + KCOORD_BEFORE);
    if (!block) return NULL;
    memcpy(block, &size, sizeof size);
    return block + KCOORD_BEFORE;
}

static void kcoord_give(void *block) {
    size_t size;
    if (!block) return;
    size = kcoord_size(block);
    if (size >= KCOORD_KEPT_LEAST && kcoord_enter(&kcoord_kept_lock)) {
        int kept = kcoord_n_kept < KCOORD_KEPT && kcoord_kept_bytes + size <= KCOORD_KEPT_BYTES;
        if (kept) {
            kcoord_kept[kcoord_n_kept].block = block;
            kcoord_kept[kcoord_n_kept++].size = size;
            kcoord_kept_bytes += size;
        }
        kcoord_leave(&kcoord_kept_lock);
        if (kept) return;
    }
    free((char *)block - KCOORD_BEFORE);
}

static void *kcoord_take_zeros(size_t size) {
    void *block = kcoord_take(size);
    if (block) memset(block, 0, size);
    return block;
}

/* The block with room for `size` bytes; NULL where memory is out, and the block is as it was. */
static void *kcoord_resize(void *block, size_t size) {
    size_t old = block ? kcoord_size(block) : 0;
    void *other;
    if (block && old >= size && old / 4 <= size) return block;
    other = kcoord_take(size);
    if (!other) return NULL;
    if (block) memcpy(other, block, old < size ? old : size);
    kcoord_give(block);
    return other;
}

/* Copy n bytes, of which `safe - p` may be read, to where n + 32 may be written; whether all are ASCII.
   SAFETY: both bounds are the caller's; a load of 32 is made only where that many are safe or belong to the n. */
static inline int kcoord_copy_ascii(uint8_t *to, const uint8_t *p, Py_ssize_t n, const uint8_t *safe) {
#if defined(__SSE2__)
    if (n <= 32 && safe - p >= 32) {
        __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 16));
        uint64_t high = (uint32_t)_mm_movemask_epi8(a) | (uint64_t)(uint32_t)_mm_movemask_epi8(b) << 16;
        _mm_storeu_si128((__m128i *)to, a);
        _mm_storeu_si128((__m128i *)(to + 16), b);
        return (high & (((uint64_t)1 << n) - 1)) == 0;
    }
    if (n >= 32) {
        __m128i seen = _mm_setzero_si128();
        const uint8_t *last = p + n - 32;
        for (;;) {
            __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 16));
            _mm_storeu_si128((__m128i *)to, a);
            _mm_storeu_si128((__m128i *)(to + 16), b);
            seen = _mm_or_si128(seen, _mm_or_si128(a, b));
            if (p == last) return _mm_movemask_epi8(seen) == 0;
            to += p + 32 > last ? last - p : 32;
            p = p + 32 > last ? last : p + 32;
        }
    }
#endif
    {
        uint64_t word, high = 0;
        while (n >= 8) {
            memcpy(&word, p, 8);
            memcpy(to, &word, 8);
            high |= word;
            p += 8, to += 8, n -= 8;
        }
        while (n-- > 0) high |= *p, *to++ = *p++;
        return (high & 0x8080808080808080ULL) == 0;
    }
}

/* Whether the n bytes at p, of which `safe - p` may be read, are all ASCII. SAFETY: as kcoord_copy_ascii. */
static inline int kcoord_all_ascii(const uint8_t *p, Py_ssize_t n, const uint8_t *safe) {
#if defined(__SSE2__)
    if (n <= 32 && safe - p >= 32) {
        __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 16));
        uint64_t high = (uint32_t)_mm_movemask_epi8(a) | (uint64_t)(uint32_t)_mm_movemask_epi8(b) << 16;
        return (high & (((uint64_t)1 << n) - 1)) == 0;
    }
    if (n >= 32) {
        const uint8_t *last = p + n - 32;
        __m128i seen = _mm_or_si128(_mm_loadu_si128((const __m128i *)last), _mm_loadu_si128((const __m128i *)(last + 16)));
        for (; p < last; p += 32)
            seen = _mm_or_si128(seen, _mm_or_si128(_mm_loadu_si128((const __m128i *)p), _mm_loadu_si128((const __m128i *)(p + 16))));
        return _mm_movemask_epi8(seen) == 0;
    }
#endif
    {
        uint64_t word, high = 0;
        for (; n >= 8; n -= 8, p += 8) {
            memcpy(&word, p, 8);
            high |= word;
        }
        while (n-- > 0) high |= *p++;
        return (high & 0x8080808080808080ULL) == 0;
    }
}

/* Copy n bytes as kcoord_copy_ascii does, whatever they are. */
static inline void kcoord_copy(uint8_t *to, const uint8_t *p, Py_ssize_t n, const uint8_t *safe) {
    if (n <= 32 && safe - p >= 32) memcpy(to, p, 32);
    else memcpy(to, p, (size_t)n);
}

/* A view of n bytes at p: up to 12 lie in the view itself, of more their first four, their buffer and their place. */
static inline void kcoord_put_view(uint8_t *to, const uint8_t *p, int32_t n, int32_t buffer, int32_t place, const uint8_t *safe) {
    if (n > 12) {
        memcpy(to, &n, 4);
        memcpy(to + 4, p, 4);
        memcpy(to + 8, &buffer, 4);
        memcpy(to + 12, &place, 4);
        return;
    }
    if (safe - p >= 12) {
        /* SAFETY: 12 bytes may be read; those past n are masked away. */
        uint64_t low;
        uint32_t high;
        memcpy(&low, p, 8);
        memcpy(&high, p + 8, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        low = n >= 8 ? low : n ? low & ~(uint64_t)0 << 8 * (8 - n) : 0;
        high = n <= 8 ? 0 : n >= 12 ? high : high & ~(uint32_t)0 << 8 * (12 - n);
#else
        low = n >= 8 ? low : low & (((uint64_t)1 << 8 * n) - 1);
        high = n <= 8 ? 0 : high & (uint32_t)(((uint64_t)1 << 8 * (n - 8)) - 1);
#endif
        memcpy(to, &n, 4);
        memcpy(to + 4, &low, 8);
        memcpy(to + 12, &high, 4);
        return;
    }
    memset(to, 0, 16);
    memcpy(to, &n, 4);
    memcpy(to + 4, p, (size_t)n);
}

static inline void kcoord_copy_swapped(uint8_t *to, const uint8_t *p, Py_ssize_t n, int width) {
    Py_ssize_t i;
    if (width == 1) {
        if (n) memcpy(to, p, (size_t)n);
    } else if (width == 2) {
        for (i = 0; i < n; i++, p += 2, to += 2) {
            uint16_t v = (uint16_t)(p[0] << 8 | p[1]);
            memcpy(to, &v, 2);
        }
    } else if (width == 4) {
        for (i = 0; i < n; i++, p += 4, to += 4) {
            uint32_t v = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
            memcpy(to, &v, 4);
        }
    } else {
        for (i = 0; i < n; i++, p += 8, to += 8) {
            uint64_t v = (uint64_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]) << 32
                | ((uint32_t)p[4] << 24 | (uint32_t)p[5] << 16 | (uint32_t)p[6] << 8 | p[7]);
            memcpy(to, &v, 8);
        }
    }
}

#endif
