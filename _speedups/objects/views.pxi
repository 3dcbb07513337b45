# Included by native.pyx: Cython wants the methods of a class in the source of its module.
#
# Laws: views are made of bytes that were scanned, and nothing of them changes after they were made, so that threads may share
# them and no access fails but for lack of memory. Every view holds the bytes and the program, whose plan it reads by.


@cython.final
@cython.no_gc_clear  # `s` points to what the program holds, until the very end
@cython.freelist(32)
cdef class View:
    """A struct in bytes that were scanned: `codec.view.View`, in C."""

    cdef bytes data
    cdef Program program
    cdef Struct* s
    cdef bint strict
    cdef Py_ssize_t start
    cdef Marks marks

    def __cinit__(self):
        self.marks.at = NULL

    def __dealloc__(self):
        PyMem_Free(self.marks.at)

    cdef object field(self, Py_ssize_t i):
        cdef Step* step
        cdef Cursor c
        cdef Py_ssize_t at = self.marks.at[i]
        if i == self.s.n_steps:
            if at < 0:
                return <object>NO_TAGS
            open_at(&c, self.data, at, self.strict)
            return tuple(read_unknown_tags(self.s, &c))
        step = &self.s.steps[i]
        if step.op == ARRAY and (at >= 0 or step.default_kind == EMPTY_LIST):
            return array_of(self, step.item, at)
        if at < 0:
            return default_of(step)
        open_at(&c, self.data, at, self.strict)
        return show(step, &c, self)

    def __getattribute__(self, name):
        cdef PyObject* found = PyDict_GetItemWithError(<object>self.s.positions, name)
        if found == NULL:
            return PyObject_GenericGetAttr(self, name)
        return self.field(<Py_ssize_t><object>found)

    def __getattr__(self, name):
        raise AttributeError(f"{(<object><PyObject*>self.s.cls).__name__} has no field {name!r}")

    def __setattr__(self, name, value):
        raise AttributeError(READ_ONLY)

    def __delattr__(self, name):
        raise AttributeError(READ_ONLY)

    @property
    def __class__(self):
        return <object><PyObject*>self.s.cls

    def __dir__(self):
        return list(<dict><object>self.s.positions)

    def __eq__(self, other):
        return self._message() == message_of(other)

    def __repr__(self):
        return f"<view of {(<object><PyObject*>self.s.cls).__name__}>"

    def __reduce__(self):
        return copy, (self._message(),)

    def _message(self):
        cdef Cursor c
        cdef PyObject* raw
        open_at(&c, self.data, self.start, self.strict)
        raw = read_message(self.s, &c)
        if raw == NULL:
            raise_python()
        message = <object>raw
        decref(raw)
        return message


@cython.final
@cython.no_gc_clear
@cython.freelist(32)
@cython.collection_type("sequence")
cdef class ArrayView:
    """An array of a `View`, or a slice of one: `codec.view.ArrayView`, in C."""

    cdef View holder
    cdef Step* item
    cdef Py_ssize_t run  # of the holder's marks; -1 where the array is not on the wire
    cdef Py_ssize_t start  # the indices, as in range(start, ..., step)
    cdef Py_ssize_t step
    cdef Py_ssize_t size

    index = Sequence.index
    count = Sequence.count

    cdef Py_ssize_t locate(self, Py_ssize_t index):
        """The offset of an element of the whole array."""
        cdef Cursor c
        cdef Py_ssize_t i
        cdef Py_ssize_t* run = self.holder.marks.at + self.run
        if self.item.size:
            return run[1] + index * self.item.size
        open_at(&c, self.holder.data, run[1 + index // STRIDE], self.holder.strict)
        for i in range(index % STRIDE):
            scan_value(self.item, &c)
        return c.p - c.base

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        cdef Cursor c
        cdef Py_ssize_t i
        if isinstance(index, slice):
            return self.slice(index)
        i = PyNumber_AsSsize_t(index, IndexError)
        if i < 0:
            i += self.size
        if not 0 <= i < self.size:
            raise IndexError("index out of range")
        open_at(&c, self.holder.data, self.locate(self.start + i * self.step), self.holder.strict)
        return show(self.item, &c, self.holder)

    cdef slice(self, index):
        cdef Py_ssize_t start
        cdef Py_ssize_t stop
        cdef Py_ssize_t step
        cdef ArrayView part = ArrayView.__new__(ArrayView)
        PySlice_Unpack(index, &start, &stop, &step)
        part.size = PySlice_AdjustIndices(self.size, &start, &stop, step)
        part.holder = self.holder
        part.item = self.item
        part.run = self.run
        part.start = self.start + start * self.step
        part.step = self.step * step if part.size > 1 else 1  # so that no product overflows
        return part

    def __iter__(self):
        cdef Elements elements = Elements.__new__(Elements)
        elements.array = self
        elements.left = self.size
        elements.at = self.locate(self.start) if self.size else 0
        return elements

    def __setitem__(self, index, value):
        raise TypeError(READ_ONLY)

    def __delitem__(self, index):
        raise TypeError(READ_ONLY)

    def __eq__(self, other):
        other = message_of(other)
        return self._message() == other if isinstance(other, list) else NotImplemented

    def __repr__(self):
        return f"<view of {self.size} elements>"

    def __reduce__(self):
        return copy, (self._message(),)

    def _message(self):
        return [message_of(element) for element in self]


@cython.final
@cython.no_gc_clear
cdef class Elements:
    """The elements of an `ArrayView`, one after the other."""

    cdef ArrayView array
    cdef Py_ssize_t left
    cdef Py_ssize_t at  # the offset of the next one

    def __iter__(self):
        return self

    def __next__(self):
        cdef Cursor c
        cdef ArrayView array = self.array
        cdef Py_ssize_t left
        with cython.critical_section(self):  # each element goes to one thread
            # Held, because garbage may be collected while the element is made, and a finalizer may use this iterator.
            left = self.left
            if left == 0:
                raise StopIteration
            open_at(&c, array.holder.data, self.at, array.holder.strict)
            element = show(array.item, &c, array.holder)
            left -= 1
            if left and array.step == 1:
                self.at = c.p - c.base
            elif left:
                self.at = array.locate(array.start + (array.size - left) * array.step)
            self.left = left
        return element


cdef inline void open_at(Cursor* c, bytes data, Py_ssize_t at, bint strict) noexcept:
    open_cursor(c, <const uint8_t*>BytesData(<PyObject*>data), BytesSize(<PyObject*>data), strict, False)
    c.p += at


cdef View view_of(Program program, Struct* s, bytes data, Cursor* c):
    """A view of the struct at the cursor, which moves behind it; None where the bytes are no such struct."""
    cdef View view = View.__new__(View)
    view.start = c.p - c.base
    if not scan_root(s, c, &view.marks):
        if view.marks.starved:
            raise MemoryError
        return None
    view.data = data
    view.program = program
    view.s = s
    view.strict = c.strict
    return view


cdef ArrayView array_of(View holder, Step* item, Py_ssize_t run):
    """The array of a run of marks, None for null; without a run an empty one."""
    cdef ArrayView array
    cdef Py_ssize_t size = holder.marks.at[run] if run >= 0 else 0
    if size < 0:
        return None
    array = ArrayView.__new__(ArrayView)
    array.holder = holder
    array.item = item
    array.run = run
    array.start = 0
    array.step = 1
    array.size = size
    return array


cdef object show(Step* step, Cursor* c, View holder):
    """The value at the cursor, which was scanned: a struct as a view. The cursor moves behind it."""
    cdef Struct* s = step.struct_
    cdef bint present = True
    cdef PyObject* raw
    if step.op == STRUCT or step.op == UNION:
        if step.op == UNION:
            s = read_variant(step, c)
        elif step.nullable:
            read_marker(step, c, &present)
        return view_of(holder.program, s, holder.data, c) if present else None
    raw = read_value(step, c)
    if raw == NULL:
        raise_python()
    value = <object>raw
    decref(raw)
    return value


cdef object default_of(Step* step):
    """The value of a field that is not on the wire."""
    cdef PyObject* raw = make_default(step)
    if raw == NULL:
        raise_python()
    value = <object>raw
    decref(raw)
    return shown(value) if step.default_kind == NEW_STRUCT else value


Sequence.register(ArrayView)
# Python code cannot make them: an empty one would have no plan.
refuse_new(<PyTypeObject*>View)
refuse_new(<PyTypeObject*>ArrayView)
refuse_new(<PyTypeObject*>Elements)
