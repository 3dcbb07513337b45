# Included by native.pyx: Cython wants the methods of a class in the source of its module.
#
# Laws: a lazy array is made of bytes that were scanned, so that no element fails but for lack of memory. An element is made
# once, and from then on only read: threads may share the array. It holds the bytes until all its elements are made, and always
# what holds the plan.


@cython.final
@cython.no_gc_clear  # as in a tuple: a cycle goes through an element, whose slots are cleared
@cython.collection_type("sequence")
cdef class LazyArray:
    """The structs of an array: `codec.lazy.LazyArray`, in C."""

    cdef object kept  # the bytes, or the memoryview of which long bytes fields become parts; None once all elements are made
    cdef const uint8_t* start  # the bytes of `kept`
    cdef const uint8_t* end
    cdef bint strict
    cdef bint parts  # `kept` is a memoryview
    cdef object owner
    cdef Step* item
    cdef Py_ssize_t size
    cdef Py_ssize_t left  # elements that are not made yet
    # For each element a reference to it, or twice its offset plus one: no object has an odd address.
    cdef PyObject** places

    index = Sequence.index
    count = Sequence.count

    def __cinit__(self):
        self.size = 0
        self.places = NULL

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.size):
            if not is_offset(self.places[i]):
                decref(self.places[i])
        PyMem_Free(self.places)

    cdef PyObject* element(self, Py_ssize_t i) except NULL:
        """An element, borrowed from the array, which keeps it."""
        cdef PyObject* element = load_pointer(&self.places[i])
        return self.make(i) if is_offset(element) else element

    cdef PyObject* make(self, Py_ssize_t i) except NULL:
        cdef Cursor c
        cdef PyObject* element
        with cython.critical_section(self):
            element = self.places[i]
            if is_offset(element):  # another thread may have made it
                kept = self.kept  # held: another element, made by a finalizer during the read, may be the last
                open_cursor(&c, self.start, self.end - self.start, self.strict, False)
                c.whole = <PyObject*>kept if self.parts else NULL
                c.p += <uintptr_t>element >> 1
                element = read_value(self.item, &c)
                if element == NULL:
                    raise_python()
                if is_offset(self.places[i]):
                    store_pointer(&self.places[i], element)
                    self.left -= 1
                    if self.left == 0:
                        self.kept = None
                else:
                    decref(element)
                    element = self.places[i]
        return element

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        cdef Py_ssize_t i
        cdef Py_ssize_t start
        cdef Py_ssize_t stop
        cdef Py_ssize_t step
        if isinstance(index, slice):
            PySlice_Unpack(index, &start, &stop, &step)
            stop = PySlice_AdjustIndices(self.size, &start, &stop, step)
            return [<object>self.element(start + i * step) for i in range(stop)]
        i = PyNumber_AsSsize_t(index, IndexError)
        if i < 0:
            i += self.size
        if not 0 <= i < self.size:
            raise IndexError("index out of range")
        return <object>self.element(i)

    def __iter__(self):
        cdef Elements elements = Elements.__new__(Elements)
        elements.array = self
        elements.next = 0
        return elements

    def __eq__(self, other):
        if isinstance(other, LazyArray):
            other = other[:]
        elif not isinstance(other, list):
            return NotImplemented
        return len(other) == self.size and self[:] == other

    def __repr__(self):
        return repr(self[:])

    def __reduce__(self):
        return list, (self[:],)


@cython.final
@cython.no_gc_clear
@cython.freelist(8)
cdef class Elements:
    """The elements of a `LazyArray`, one after the other. As with a list's, two threads may get the same one."""

    cdef LazyArray array
    cdef Py_ssize_t next

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t i = load_size(&self.next)
        if i >= self.array.size:
            raise StopIteration
        store_size(&self.next, i + 1)
        return <object>self.array.element(i)

    def __length_hint__(self):
        return max(self.array.size - load_size(&self.next), 0)


cdef inline bint is_offset(PyObject* place) noexcept:
    return <uintptr_t>place & 1


cdef int traverse_lazy_array(PyObject* self, visitproc visit, void* arg) noexcept:
    """What Cython's own function visits, and the elements that are made."""
    cdef int stopped = traverse_attributes(self, visit, arg)
    cdef PyObject** places = (<LazyArray>self).places
    cdef Py_ssize_t i
    for i in range((<LazyArray>self).size):
        if stopped:
            break
        if not is_offset(places[i]):
            stopped = visit(places[i], arg)
    return stopped


cdef PyObject* defer_array(void* step, Cursor* c, Py_ssize_t n) noexcept:
    cdef Step* item = <Step*>step
    cdef const uint8_t* start = c.p
    cdef LazyArray array
    cdef PyObject** places
    cdef Py_ssize_t i
    try:
        array = LazyArray.__new__(LazyArray)
        places = <PyObject**>PyMem_Malloc(n * sizeof(PyObject*))
        if places == NULL:
            raise MemoryError
    except BaseException as error:
        PyErr_SetObject(<PyObject*>Py_TYPE(<PyObject*>error), <PyObject*>error)
        return NULL
    for i in range(n):
        # SAFETY: an offset is below 2**62 (2**30), so that twice of it fits.
        places[i] = <PyObject*>(2 * <uintptr_t>(c.p - c.base) + 1)
        if not (scan_struct(item.struct_, c) if item.op == STRUCT else scan_value(item, c)):
            PyMem_Free(places)
            c.p = start
            c.failure.kind = PYTHON  # as `open_cursor` left it
            return NULL
    array.kept = <object>c.kept
    array.start = c.base
    array.end = c.end
    array.parts = c.whole != NULL
    array.owner = <object>c.owner
    array.item = item
    array.strict = c.strict
    array.places = places
    array.size = array.left = n
    incref(<PyObject*>array)
    return <PyObject*>array


cdef traverseproc traverse_attributes = replace_traverse(<PyTypeObject*>LazyArray, traverse_lazy_array)
Sequence.register(LazyArray)
lazy_arrays.LAZY_ARRAYS.append(LazyArray)
# Python code cannot make them: an empty one would have no plan.
refuse_new(<PyTypeObject*>LazyArray)
refuse_new(<PyTypeObject*>Elements)
