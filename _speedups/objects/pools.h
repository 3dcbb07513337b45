/* How values are made and dropped: pools of what dropped messages leave, and the deallocator that fills them.

   Why: decoding a message is mostly making objects, and using it once is mostly freeing them again (CPython 3.11, perf: 23 to
   28 % and 38 to 42 % of the time). CPython keeps free lists for its own small types; these are ours, for instances of the
   message classes and for what they hold.

   What changes: a class that `check_layout` accepts gets `kcoord_dealloc` for its tp_dealloc, instead of the one that
   CPython gives to every class made in Python (subtype_dealloc). Nothing else of the type changes: it keeps Py_TPFLAGS_HAVE_GC,
   tp_alloc, tp_free, tp_traverse and tp_clear, so cycles are found, `cls()`, copy and pickle work as before, and each
   instance, however made, is the same block: a PyGC_Head, a PyObject, slots.

   Laws of instances:

   - The deallocator does what subtype_dealloc does for such a class, in its order: untrack; defer when the C stack is deep
     (trashcan); call __del__ where the class has got one, which may resurrect; drop the slots; free; drop the type. Structs and
     lists in it are dropped in the same call, without the trashcan, down to `KCOORD_DEPTH`, where no code of others runs.
   - A subclass made in Python keeps subtype_dealloc, which drops what the subclass adds and then calls ours, as the
     deallocator of its base. Its instances are freed, never pooled: they have other sizes, dicts, weak references.
   - A pool of instances holds memory, not objects: no reference to or from it, not tracked, its type NULL. A class can die
     while memory of its instances is in a pool, and an instance of another class with as many slots gets it.
   - Memory becomes an instance again by PyObject_Init, as in CPython's own free lists: it takes a reference to the class,
     and tells tracemalloc, a debug Python's counters and the reference tracer that there is a new object.

   Laws of contents:

   - What a slot holds by the only reference goes into a pool with that reference: it stays an object, of which nobody but the
     pool knows, and counts as one for every tool. An item of a list in a slot likewise. All else loses its reference as usual.
   - Only exact types whose state is known go: str that is ASCII, compact, not interned, of 2 to 255 characters; bytes of 2 to
     255; positive int of one or two digits; list with room for at most 16 items, emptied and untracked. Before such an object
     is handed out, its bytes, digits or items are written anew and its cached hash is reset, as CPython itself changes a str
     or tuple that has one reference (PyUnicode_Append, _PyTuple_Resize).

   Law of the limit: the pools have room for all that is dropped before the next message is read, or for nothing.

   Traffic earns it. Bytes that the pools refused when a message was dropped, and did not have when one was read, raise
   `kcoord_pool_limit` before the next message: it is 0 at first, and what one message or a few hold where each is dropped soon.
   Where more than `kcoord_pool_ceiling` was refused between two messages, many were kept and dropped together: the limit falls
   to 0, and all that is kept is freed with them. Keeping a part would cost more than nothing kept: a few objects from here and
   there pin the allocator's arenas (a message of 5,000 members, ten dropped together after a long history: up to 1.2 times the
   time at a fixed 512 KiB, 1.5 times at 2 MiB). At the ceiling, pools from which nothing was taken since are emptied now and
   then, so that traffic of another kind finds room. `kcoord_trim` empties all.

   SAFETY: the GIL guards the pools. Nothing that runs between reading and replacing the top of a pool could release it. Without
   a GIL there are no pools, and classes are left as they are. Subinterpreters do not load the module (codec/backend.py). */

#ifndef KCOORD_POOLS_H
#define KCOORD_POOLS_H

#include <Python.h>
#include <string.h>

#include "ints.h"

/* Debug Pythons and sanitizers find uses of memory that was freed: pooled memory is not. An explicit limit turns pools on. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define KCOORD_SANITIZED
#endif
#endif
#if defined(Py_DEBUG) || defined(Py_GIL_DISABLED) || defined(__SANITIZE_ADDRESS__) || defined(KCOORD_SANITIZED)
#define KCOORD_POOLS_BY_DEFAULT 0
#else
#define KCOORD_POOLS_BY_DEFAULT 1
#endif

#ifdef Py_GIL_DISABLED

static int kcoord_load_pools(void) { return 0; }
static void kcoord_adopt(PyTypeObject *cls, PyTypeObject *plain) { (void)cls, (void)plain; }
static void kcoord_set_pool_ceiling(Py_ssize_t ceiling) { (void)ceiling; }
static Py_ssize_t kcoord_trim(void) { return 0; }
static inline void kcoord_age_pools(void) {}
static inline PyObject *kcoord_new_pooled(PyTypeObject *cls) { (void)cls; return NULL; }
static inline PyObject *kcoord_new_int(long long value) { return PyLong_FromLongLong(value); }
static inline PyObject *kcoord_new_text(Py_ssize_t n) { return PyUnicode_New(n, 127); }
static inline PyObject *kcoord_new_bytes(const char *p, Py_ssize_t n) { return PyBytes_FromStringAndSize(p, n); }
static inline PyObject *kcoord_new_list(Py_ssize_t n) {
    PyObject *list = PyList_New(n);
    if (list != NULL) PyObject_GC_UnTrack(list);
    return list;
}

#else

#define KCOORD_SLOTS(cls) (((cls)->tp_basicsize - (Py_ssize_t)sizeof(PyObject)) / (Py_ssize_t)sizeof(PyObject *))

enum {
    KCOORD_SLOT_SIZES = 33,  /* the widest of the package's classes has 21 */
    KCOORD_TEXT_SIZES = 256,
    KCOORD_LIST_SIZES = 17,
    KCOORD_GC_HEAD = 2 * sizeof(void *),  /* lies before an instance or a list */
    KCOORD_LOWEST_INT = -5,
    KCOORD_INTS = 2048,  /* partitions, ports, versions, broker ids */
    KCOORD_LOOKS = 64,
    KCOORD_DEPTH = 10,  /* lists and instances in each other, of which the package's messages have nine at most */
};

/* The PyGC_Head before an object: the first word is 0 while the object is not tracked, the second one then holds marks alone.
   `kcoord_load_pools` compares them with what CPython says. */
#define KCOORD_GC_WORDS(o) ((uintptr_t *)(o) - 2)

static inline void kcoord_untrack(PyObject *o) {
    if (KCOORD_GC_WORDS(o)[0] != 0) PyObject_GC_UnTrack(o);
}

/* A stack of objects of one size, or of memory for instances. */
typedef struct {
    PyObject **at;
    Py_ssize_t n, room;
    int taken;  /* whether anything was since the pools were looked through */
} KcoordPool;

static KcoordPool kcoord_instances[KCOORD_SLOT_SIZES];  /* by number of slots */
static KcoordPool kcoord_texts[KCOORD_TEXT_SIZES], kcoord_bytes[KCOORD_TEXT_SIZES];  /* by length */
static KcoordPool kcoord_lists[KCOORD_LIST_SIZES];  /* by room */
static KcoordPool kcoord_longs[KCOORD_DIGITS];  /* by number of digits */
static Py_ssize_t kcoord_pool_ceiling, kcoord_pool_limit, kcoord_pooled;  /* bytes */
static Py_ssize_t kcoord_refused, kcoord_missed;  /* bytes that were not kept, and not found, since the limit was looked at */
static unsigned kcoord_looks;  /* at the ceiling */
static PyObject *kcoord_ints[KCOORD_INTS];  /* one reference each, for ever */

static inline Py_ssize_t kcoord_instance_size(Py_ssize_t slots) {
    return KCOORD_GC_HEAD + sizeof(PyObject) + slots * sizeof(PyObject *);
}
static inline Py_ssize_t kcoord_text_size(Py_ssize_t n) { return sizeof(PyASCIIObject) + n + 1; }
static inline Py_ssize_t kcoord_bytes_size(Py_ssize_t n) { return sizeof(PyBytesObject) + n; }
static inline Py_ssize_t kcoord_list_size(Py_ssize_t room) {
    return KCOORD_GC_HEAD + sizeof(PyListObject) + room * sizeof(PyObject *);
}
static inline Py_ssize_t kcoord_long_size(Py_ssize_t digits) {
    return sizeof(PyLongObject) + (digits - 1) * sizeof(digit);
}

static int kcoord_grow(KcoordPool *pool) {
    Py_ssize_t room = pool->room ? 2 * pool->room : 32;
    PyObject **at = (PyObject **)PyMem_RawRealloc(pool->at, room * sizeof(PyObject *));
    if (at == NULL) return 0;
    pool->at = at;
    pool->room = room;
    return 1;
}

static Py_ALWAYS_INLINE inline int kcoord_push(KcoordPool *pool, PyObject *o, Py_ssize_t size) {
    if (kcoord_pooled >= kcoord_pool_limit) {
        kcoord_refused += size;
        return 0;
    }
    if (pool->n == pool->room && !kcoord_grow(pool)) return 0;
    pool->at[pool->n++] = o;
    kcoord_pooled += size;
    return 1;
}

static inline PyObject *kcoord_pop(KcoordPool *pool, Py_ssize_t size) {
    if (pool->n == 0) {
        kcoord_missed += size;
        return NULL;
    }
    pool->taken = 1;
    kcoord_pooled -= size;
    return pool->at[--pool->n];
}

/* Dropping. */

/* Whether a memoryview is of bytes, as those that decode makes. SAFETY: until it is released it holds the object that it shows. */
static inline int kcoord_is_part(PyObject *view) {
    PyMemoryViewObject *self = (PyMemoryViewObject *)view;
    return !(self->flags & _Py_MEMORYVIEW_RELEASED) && self->weakreflist == NULL && self->view.obj != NULL
        && PyBytes_CheckExact(self->view.obj);
}

/* Drop a reference that frees at most what runs no code of others and holds nothing that could, or NULL. 0: it may free more,
   and was not dropped. */
static inline int kcoord_drop_scalar(PyObject *o) {
    if (o == NULL) return 1;
    if (Py_REFCNT(o) == 1) {
        PyTypeObject *cls = Py_TYPE(o);
        Py_ssize_t n;
        if (cls == &PyUnicode_Type) {
            n = PyUnicode_GET_LENGTH(o);
            /* SAFETY: a compact ASCII string is one block, for which its length alone accounts; 3.11 can add another one. An
               interned one is also a key of CPython's table, without a reference of that. */
            if (n > 1 && n < KCOORD_TEXT_SIZES && PyUnicode_IS_COMPACT_ASCII(o) && !PyUnicode_CHECK_INTERNED(o)
#if PY_VERSION_HEX < 0x030C0000
                && ((PyASCIIObject *)o)->wstr == NULL
#endif
                && kcoord_push(&kcoord_texts[n], o, kcoord_text_size(n))) return 1;
        }
        else if (cls == &PyBytes_Type) {
            n = PyBytes_GET_SIZE(o);
            if (n > 1 && n < KCOORD_TEXT_SIZES && kcoord_push(&kcoord_bytes[n], o, kcoord_bytes_size(n))) return 1;
        }
        else if (cls == &PyLong_Type) {
            for (n = 1; n < KCOORD_DIGITS; n++)
                if (KCOORD_TAG(o) == kcoord_tags[n]) {
                    if (kcoord_push(&kcoord_longs[n], o, kcoord_long_size(n))) return 1;
                    break;
                }
        }
        else if (cls != &PyMemoryView_Type || !kcoord_is_part(o))
            return 0;
    }
    Py_DECREF(o);
    return 1;
}

/* Drop a list without items that has one reference and is not tracked. */
static inline void kcoord_drop_empty(PyObject *list) {
    Py_ssize_t room = ((PyListObject *)list)->allocated;
    Py_SET_SIZE(list, 0);
    if (room < 0 || room >= KCOORD_LIST_SIZES || !kcoord_push(&kcoord_lists[room], list, kcoord_list_size(room))) Py_DECREF(list);
}

static void kcoord_dealloc(PyObject *self);
static int kcoord_drop_nested(PyObject *o, int depth);

/* Whether dropping an instance of the class runs no code of others, if what it holds does not. */
static inline int kcoord_is_quiet(PyTypeObject *cls) { return cls->tp_dealloc == kcoord_dealloc && cls->tp_finalize == NULL; }

/* Drop a list of scalars. 0: it is something else, or has lost its last items up to one that is no scalar.
   SAFETY: as `kcoord_drop_nested`, of which this is the most frequent case: a call for each list makes decoding Metadata, which has
   three in each partition, 6 % slower. */
static Py_ALWAYS_INLINE inline int kcoord_drop_flat(PyObject *o) {
    Py_ssize_t n;
    if (!PyList_CheckExact(o)) return 0;
    kcoord_untrack(o);
    for (n = Py_SIZE(o); n > 0 && kcoord_drop_scalar(PyList_GET_ITEM(o, n - 1)); n--) {}
    Py_SET_SIZE(o, n);
    if (n) return 0;
    kcoord_drop_empty(o);
    return 1;
}

/* Drop references, the last one first, up to one that cannot be dropped here. Returns how many are left. The last goes first
   because the next message takes its objects from the top: in the order in which they lie in memory. */
static inline Py_ssize_t kcoord_drop_all(PyObject **at, Py_ssize_t n, int depth) {
    while (n > 0 && (kcoord_drop_scalar(at[n - 1]) || kcoord_drop_flat(at[n - 1]) || kcoord_drop_nested(at[n - 1], depth))) n--;
    return n;
}

/* Free an instance that holds nothing any more, of a class that has `n` slots; drop its class. */
static inline void kcoord_free(PyObject *self, PyTypeObject *cls, Py_ssize_t n, int is_own) {
    /* The mark that __del__ has run stays in the PyGC_Head. */
    if (is_own && n < KCOORD_SLOT_SIZES && (KCOORD_GC_WORDS(self)[1] == 0 || !PyObject_GC_IsFinalized(self))
        && kcoord_push(&kcoord_instances[n], self, kcoord_instance_size(n)))
        Py_SET_TYPE(self, NULL);
    else
        cls->tp_free(self);
    Py_DECREF(cls);
}

/* Drop an instance of a quiet class, which is not tracked. 0: only its last slots were dropped. */
static inline int kcoord_drop_slots(PyObject *self, PyTypeObject *cls, int depth) {
    PyObject **slot = (PyObject **)(self + 1);
    Py_ssize_t n = KCOORD_SLOTS(cls), left = kcoord_drop_all(slot, n, depth);
    if (left) {
        memset(slot + left, 0, (n - left) * sizeof(PyObject *));
        return 0;
    }
    kcoord_free(self, cls, n, 1);
    return 1;
}

/* Drop a list or an instance of a quiet class to which there is one reference. 0: it is another object; or it has only lost the
   end of what it holds, because the rest may run code of others, or nests deeper than `depth`.
   SAFETY: nothing here runs code of others, the collector included: what is half dropped is unreachable and not tracked
   until the caller that got the 0 drops the rest by Py_DECREF. */
static int kcoord_drop_nested(PyObject *o, int depth) {
    PyTypeObject *cls = Py_TYPE(o);
    if (depth == 0 || !(cls == &PyList_Type || kcoord_is_quiet(cls))) return 0;
    kcoord_untrack(o);
    if (cls != &PyList_Type) {
#ifdef Py_TRACE_REFS
        return 0;  /* _Py_Dealloc takes each object out of the list of all objects */
#endif
        if (!kcoord_drop_slots(o, cls, depth - 1)) return 0;
#ifdef Py_REF_DEBUG
        /* The instance is gone with its last reference, which no Py_DECREF has counted: one that leaves another object as it was. */
        Py_SET_REFCNT(kcoord_ints[KCOORD_INTS - 1], Py_REFCNT(kcoord_ints[KCOORD_INTS - 1]) + 1);
        Py_DECREF(kcoord_ints[KCOORD_INTS - 1]);
#endif
        return 1;
    }
    Py_SET_SIZE(o, kcoord_drop_all(((PyListObject *)o)->ob_item, Py_SIZE(o), depth - 1));
    if (Py_SIZE(o)) return 0;
    kcoord_drop_empty(o);
    return 1;
}

/* Drop an instance as subtype_dealloc does: what it holds may run any code, or nest without end. */
static void kcoord_dealloc_any(PyObject *self) {
    PyTypeObject *cls = Py_TYPE(self);
    PyTypeObject *own = cls, *base;
    PyObject **slot = (PyObject **)(self + 1);
    Py_ssize_t n;
    /* It defers nothing where Py_TYPE(self) has another deallocator: that one has passed its own trashcan, and has
       dropped parts of the object. In 3.14 _Py_Dealloc does this. */
    Py_TRASHCAN_BEGIN(self, kcoord_dealloc)
    /* The class that has got the slots: the adopted one, for an adopted class has none above it; or, where the __del__ of a
       subclass has set another class, one with the same slots that nobody adopted: Python sees to that.
       SAFETY: ends at `object` at the latest, which is a base of each class and has no slots. */
    for (base = own->tp_base; KCOORD_SLOTS(base) > 0; base = base->tp_base) own = base;
    if (own == cls && cls->tp_finalize != NULL) {
        PyObject_GC_Track(self);  /* __del__ sees an object like any other */
        if (PyObject_CallFinalizerFromDealloc(self) < 0) goto resurrected;
        PyObject_GC_UnTrack(self);
        cls = Py_TYPE(self);  /* __del__ may have set another class, of the same layout */
    }
    /* SAFETY: the class has these slots after the header and nothing else. No code can reach them from here on. */
    n = KCOORD_SLOTS(own);
    while ((n = kcoord_drop_all(slot, n, KCOORD_DEPTH)) > 0) Py_DECREF(slot[--n]);
    kcoord_free(self, cls, KCOORD_SLOTS(own), own == cls);
resurrected:;
    Py_TRASHCAN_END
}

static void kcoord_dealloc(PyObject *self) {
    PyTypeObject *cls = Py_TYPE(self);
    kcoord_untrack(self);
    /* Nearly all messages consist of strings, bytes and numbers, and of lists and structs of these. They need neither the trashcan
       nor the search for the class, nor a call of _Py_Dealloc for each struct. */
    if (!kcoord_is_quiet(cls) || !kcoord_drop_slots(self, cls, KCOORD_DEPTH)) kcoord_dealloc_any(self);
}

/* Give the class our deallocator, if its own is that of `plain`, a class made in Python. Existing instances may stay: both
   deallocators are right for them. */
static void kcoord_adopt(PyTypeObject *cls, PyTypeObject *plain) {
    if (cls->tp_dealloc == plain->tp_dealloc && PyType_IS_GC(cls) && cls->tp_free == PyObject_GC_Del && cls->tp_del == NULL
        && cls->tp_itemsize == 0 && KCOORD_SLOTS(cls) > 0)
        cls->tp_dealloc = kcoord_dealloc;
}

/* Making. Each function returns a new reference, or NULL with an exception set. */

/* A new instance of an adopted class with its slots unset; NULL without an exception where the pool has none. */
static inline PyObject *kcoord_new_pooled(PyTypeObject *cls) {
    Py_ssize_t n = KCOORD_SLOTS(cls);
    PyObject *self;
    if (cls->tp_dealloc != kcoord_dealloc || n >= KCOORD_SLOT_SIZES
        || (self = kcoord_pop(&kcoord_instances[n], kcoord_instance_size(n))) == NULL) return NULL;
    /* SAFETY: the block is as large as any instance with n slots; its PyGC_Head is that of an untracked object. */
    return PyObject_Init(self, cls);
}

static inline PyObject *kcoord_new_int(long long value) {
    PyObject *o;
    int digits = value >> PyLong_SHIFT ? 2 : 1;
    if (value >= KCOORD_LOWEST_INT && value < KCOORD_LOWEST_INT + KCOORD_INTS) {
        o = kcoord_ints[value - KCOORD_LOWEST_INT];
        Py_INCREF(o);
        return o;
    }
    if (value > 0 && value >> PyLong_SHIFT <= PyLong_MASK
        && (o = kcoord_pop(&kcoord_longs[digits], kcoord_long_size(digits))) != NULL) {
        /* SAFETY: positive, of as many digits, and known to nobody else. */
        KCOORD_DIGIT(o)[0] = (digit)(value & PyLong_MASK);
        if (digits == 2) KCOORD_DIGIT(o)[1] = (digit)(value >> PyLong_SHIFT);
        return o;
    }
    return PyLong_FromLongLong(value);
}

/* An ASCII string of n >= 2 characters, which the caller fills in. */
static inline PyObject *kcoord_new_text(Py_ssize_t n) {
    PyObject *o;
    if (n >= KCOORD_TEXT_SIZES || (o = kcoord_pop(&kcoord_texts[n], kcoord_text_size(n))) == NULL) return PyUnicode_New(n, 127);
    ((PyASCIIObject *)o)->hash = -1;
    return o;
}

static inline PyObject *kcoord_new_bytes(const char *p, Py_ssize_t n) {
    PyObject *o;
    if (n >= KCOORD_TEXT_SIZES || (o = kcoord_pop(&kcoord_bytes[n], kcoord_bytes_size(n))) == NULL)
        return PyBytes_FromStringAndSize(p, n);
_Py_COMP_DIAG_PUSH
_Py_COMP_DIAG_IGNORE_DEPR_DECLS
    ((PyBytesObject *)o)->ob_shash = -1;
_Py_COMP_DIAG_POP
    memcpy(PyBytes_AS_STRING(o), p, n);
    return o;
}

/* An untracked list of n items that are unset: the caller sets them in their order, or drops it by `kcoord_drop_begun`. */
static inline PyObject *kcoord_new_list(Py_ssize_t n) {
    PyObject *o;
    if (n < KCOORD_LIST_SIZES && (o = kcoord_pop(&kcoord_lists[n], kcoord_list_size(n))) != NULL) {
        /* SAFETY: it has room for n items. What was in them is not cleared (15 % of decoding Metadata, by memset alone): no code
           sees them before they are set, for an untracked list is in no collector's hands. */
        Py_SET_SIZE(o, n);
        return o;
    }
    o = PyList_New(n);
    if (o != NULL) PyObject_GC_UnTrack(o);
    return o;
}

/* All pools. */

static void kcoord_empty(KcoordPool *pool, Py_ssize_t size, int of_instances) {
    PyObject *o;
    while (pool->n > 0) {
        /* Counted before it is freed: freeing a list may free what the trashcan has put off, which may come into this pool. */
        kcoord_pooled -= size;
        o = pool->at[--pool->n];
        if (of_instances) {
            /* PyObject_GC_Del asks the type what lies before the object: before a list, the PyGC_Head alone. */
            Py_SET_TYPE(o, &PyList_Type);
            PyObject_GC_Del(o);
        }
        else
            Py_DECREF(o);
    }
    PyMem_RawFree(pool->at);
    pool->at = NULL;
    pool->room = 0;
}

static void kcoord_empty_pools(int all) {
    Py_ssize_t i;
#define KCOORD_EACH(pools, count, size, of_instances) \
    for (i = 0; i < (count); i++) { \
        if (all || !(pools)[i].taken) kcoord_empty(&(pools)[i], size(i), of_instances); \
        (pools)[i].taken = 0; \
    }
    KCOORD_EACH(kcoord_instances, KCOORD_SLOT_SIZES, kcoord_instance_size, 1)
    KCOORD_EACH(kcoord_texts, KCOORD_TEXT_SIZES, kcoord_text_size, 0)
    KCOORD_EACH(kcoord_bytes, KCOORD_TEXT_SIZES, kcoord_bytes_size, 0)
    KCOORD_EACH(kcoord_lists, KCOORD_LIST_SIZES, kcoord_list_size, 0)
    KCOORD_EACH(kcoord_longs, KCOORD_DIGITS, kcoord_long_size, 0)
#undef KCOORD_EACH
}

/* Free what the pools keep. Returns its bytes. */
static Py_ssize_t kcoord_trim(void) {
    Py_ssize_t freed = kcoord_pooled;
    kcoord_empty_pools(1);
    return freed;
}

/* Bound the pools, which are emptied, and have room for nothing until traffic earns it. */
static void kcoord_set_pool_ceiling(Py_ssize_t ceiling) {
    kcoord_pool_limit = 0;
    kcoord_trim();
    kcoord_pool_ceiling = ceiling;
    kcoord_refused = kcoord_missed = 0;
}

static void kcoord_move_limit(void) {
    Py_ssize_t more = kcoord_refused < kcoord_missed ? kcoord_refused : kcoord_missed;
    if (kcoord_refused > kcoord_pool_ceiling) {
        kcoord_pool_limit = 0;
        kcoord_trim();
    }
    else if (kcoord_pool_limit < kcoord_pool_ceiling) {
        if (more > kcoord_pool_ceiling - kcoord_pool_limit) more = kcoord_pool_ceiling - kcoord_pool_limit;
        kcoord_pool_limit += more;
    }
    else if (++kcoord_looks % KCOORD_LOOKS == 0)
        kcoord_empty_pools(0);
    kcoord_refused = kcoord_missed = 0;
}

/* To be called before each message. */
static inline void kcoord_age_pools(void) {
    if (kcoord_refused) kcoord_move_limit();
}

/* Fills the table of small ints. Returns -1 with an exception set. */
static int kcoord_load_pools(void) {
    PyObject *sample = PyList_New(0);
    int i, is_known;
    if (sample == NULL) return -1;
    is_known = KCOORD_GC_WORDS(sample)[0] != 0;
    PyObject_GC_UnTrack(sample);
    is_known = is_known && KCOORD_GC_WORDS(sample)[0] == 0 && KCOORD_GC_WORDS(sample)[1] == 0;
    Py_DECREF(sample);
    if (!is_known) {
        PyErr_SetString(PyExc_ImportError, "this Python has another layout of PyGC_Head");
        return -1;
    }
    for (i = 0; i < KCOORD_INTS; i++)
        if ((kcoord_ints[i] = PyLong_FromLong(KCOORD_LOWEST_INT + i)) == NULL) return -1;
    return 0;
}

#endif

/* Drop a list of which the first n items are set. */
static inline void kcoord_drop_begun(PyObject *list, Py_ssize_t n) {
    Py_SET_SIZE(list, n);
    Py_DECREF(list);
}

#endif
