# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, freethreading_compatible=True
"""The native column decoder: walks plans over frames, and fills Arrow buffers without an object in between.

Laws:

* Output and errors are those of codec.columns.pure.
* Nothing a peer sends reaches an allocation unchecked; a batch holds a multiple of its input's bytes and rows at most.
* The decoder keeps no buffer from batch to batch, only how long they were. It decodes one batch at a time.
* The instructions of a message at a version are made at its first row: most captures hold one version of each.
"""

import struct
from threading import Lock

from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.schema.plan import Op as PlanOp
from kcoord_wire.schema.plan import Presence as PlanPresence

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from arrow cimport *
from build cimport *
from read cimport *
from rows cimport *
from cursor cimport LENGTH, NULL_VALUE, RANGE, TAG, TRAILING, TRUNCATED, UTF8, VALUE, VARINT, VERSION, load16, load32
from plan cimport (
    ABSENT, ARRAY, BOOL, BYTES, FLOAT64, INT8, INT16, INT32, INT64, LENGTH_NONE, PLAIN, REMAINING, STRING, STRUCT, TAGGED,
    KCOORD_WIRE_SOURCES, UINT16, UINT32, UNION, UUID, plan_format,
)
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

__all__ = ["PLAN_FORMAT", "SOURCES", "Decoder"]

PLAN_FORMAT = plan_format()
SOURCES = KCOORD_WIRE_SOURCES

cdef dict KINDS = {
    <int>TRUNCATED: b"truncated", <int>LENGTH: b"length", <int>NULL_VALUE: b"null", <int>UTF8: b"utf8",
    <int>VARINT: b"varint", <int>TAG: b"tag", <int>VALUE: b"value", <int>RANGE: b"range", <int>TRAILING: b"trailing",
    <int>VERSION: b"version",
}
cdef dict OUT = {  # what a number becomes: form, bytes of a slot
    PlanOp.BOOL: (BITS, 0), PlanOp.INT8: (FIXED, 1), PlanOp.INT16: (FIXED, 2), PlanOp.INT32: (FIXED, 4),
    PlanOp.INT64: (FIXED, 8), PlanOp.UINT16: (FIXED, 4), PlanOp.UINT32: (FIXED, 8), PlanOp.FLOAT64: (FIXED, 8),
}
cdef dict FIXED_CODES = {
    PlanOp.BOOL: BOOLEAN, PlanOp.INT8: FIXED_1, PlanOp.INT16: FIXED_2, PlanOp.INT32: FIXED_4, PlanOp.INT64: FIXED_8,
    PlanOp.UINT16: UNSIGNED_2, PlanOp.UINT32: UNSIGNED_4, PlanOp.FLOAT64: FIXED_8,
}
cdef dict FORMS = {
    "request": REQUEST, "response": RESPONSE, "message": MESSAGE, "prefixed": PREFIXED, "typed": TYPED,
}


cdef void release_capsule(object capsule) noexcept:
    cdef ArrowArray* a = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if a.release != NULL:
        a.release(a)
    free(a)


@cython.final
@cython.no_gc_clear  # what the C plan points to lies in `blocks`, until the very end
cdef class Decoder:
    """Implements `codec.columns.ColumnDecoder` behind its checks of arguments, as codec.columns.pure does.

    :param task: a `codec.columns.shape.Task`
    """

    cdef Decoding d
    cdef bint views
    cdef object schema
    cdef object lock
    cdef object failure  # what has kept instructions from being made
    cdef list messages  # the codec and the Shape of each message
    cdef list keep
    cdef list blocks
    cdef dict columns  # id of a Shape -> its Column*, as an integer
    cdef dict bare  # id of a StructPlan -> the Walk* that only checks it
    cdef bytes constants  # texts of defaults that are too long for a view

    def __cinit__(self, task):
        cdef int i
        self.blocks = []
        self.keep = [task]
        self.messages = []
        self.columns = {}
        self.bare = {}
        self.constants = bytes(16)
        self.lock = Lock()
        self.d.form = FORMS[task.walk]
        self.d.strict = task.strict
        self.d.old_header_key = <int>ApiKey.CONTROLLED_SHUTDOWN
        self.d.downgraded_key = <int>ApiKey.API_VERSIONS
        self.d.downgraded_error = <int>ErrorCode.UNSUPPORTED_VERSION
        self.views = task.views
        self.schema = task.schema
        self.build_head(task)
        self.d.n_messages = len(task.codecs)
        self.d.messages = <Message*>self.block(self.d.n_messages, sizeof(Message))
        self.d.route = <uint16_t*>self.block(65536, sizeof(uint16_t))
        by_name = {shape.name: shape for shape in task.shapes}
        for i, codec in enumerate(task.codecs):
            self.build_message(&self.d.messages[i], codec, by_name.get(codec.name), task)
            if codec.api_key is not None:
                self.d.route[<uint16_t>(codec.api_key & 0xFFFF)] = i + 1
        # SAFETY: called while `decode` holds the decoder, by one thread.
        self.d.owner = <void*>self
        self.d.make_walk = make_walk

    def __dealloc__(self):
        for block in self.blocks:
            PyMem_Free(<void*><size_t>block)

    # ---- from the plan to instructions

    cdef void* block(self, Py_ssize_t count, size_t size) except NULL:
        cdef void* memory = PyMem_Calloc(count if count else 1, size)
        if memory == NULL:
            raise MemoryError
        self.blocks.append(<size_t>memory)
        return memory

    cdef Level* new_level(self, list columns) except NULL:
        cdef Level* level = <Level*>self.block(1, sizeof(Level))
        self.set_columns(level, columns)
        return level

    cdef int set_columns(self, Level* level, list columns) except -1:
        cdef int i
        level.n_columns = len(columns)
        level.columns = <Column**>self.block(level.n_columns, sizeof(Column*))
        for i in range(level.n_columns):
            level.columns[i] = <Column*><size_t>columns[i]
            level.columns[i].level = level
        return 0

    cdef Column* build_column(self, shape, list columns) except NULL:
        """The column of `shape`; it and those of its fields are appended to the level's `columns`."""
        cdef Column* c = <Column*>self.block(1, sizeof(Column))
        cdef list inner
        cdef int i
        self.columns[id(shape)] = <size_t>c
        columns.append(<size_t>c)
        if shape.op == PlanOp.STRUCT:
            c.form = FIELDS
            c.n_fields = len(shape.children)
            c.fields = <Column**>self.block(c.n_fields, sizeof(Column*))
            for i, child in enumerate(shape.children):
                c.fields[i] = self.build_column(child, columns)
        elif shape.op == PlanOp.ARRAY:
            c.form = LIST
            inner = []
            self.build_column(shape.children[0], inner)
            c.items = self.new_level(inner)
        elif shape.op in OUT:
            c.form, c.width = OUT[shape.op]
        elif self.views:
            c.form = VIEW
            c.width = 16
        else:
            c.form = TEXT
        return c

    cdef size_t column_of(self, shape):
        return 0 if shape is None else self.columns[id(shape)]

    cdef int build_head(self, task) except -1:
        """The columns of the header, and the walks that fill them."""
        cdef list columns = []
        shape = task.head
        self.keep.append(shape)
        self.d.head.column = self.build_column(shape, columns)
        self.d.head.rows = self.new_level(columns)
        header = task.header
        if header is None:
            return 0
        # The newest header is the one before it with a tag section behind.
        self.d.header_tags = self.emit(self.compile_tags(header.plan(header.valid_versions.stop - 1), None), [])
        if self.d.form == REQUEST:
            self.d.header = self.build_struct(header.plan(1), shape)
            self.d.old_header = self.build_struct(header.plan(0), shape)
        return 0

    cdef int build_message(self, Message* m, codec, shape, task) except -1:
        cdef list columns = []
        cdef int i
        versions = codec.valid_versions
        m.key = -1 if codec.api_key is None else codec.api_key
        m.first = versions.start
        m.n_versions = len(versions)
        if shape is not None:
            m.column = self.build_column(shape, columns)
        m.rows = self.new_level(columns)
        m.versions = <Version*>self.block(m.n_versions, sizeof(Version))
        self.messages.append((codec, shape))
        for i, version in enumerate(versions):
            m.versions[i].tags_before = task.has_tags_before(codec, version)
            if self.views:  # their constants are copied before the first row
                self.build_version(m, i)
        return 0

    cdef Walk* build_version(self, Message* m, int64_t i) except NULL:
        codec, shape = self.messages[m - self.d.messages]
        m.versions[i].walk = self.build_struct(codec.plan(m.first + i), shape)
        return m.versions[i].walk

    cdef Walk* build_struct(self, plan, shape) except NULL:
        cdef list steps = []
        cdef list defaults = []
        cdef Walk* walk
        if shape is None and id(plan) in self.bare:
            return <Walk*><size_t>self.bare[id(plan)]
        self.compile_fields(plan, shape, steps, defaults)
        walk = self.emit(steps, defaults)
        if shape is None:
            self.bare[id(plan)] = <size_t>walk
            self.keep.append(plan)
        return walk

    cdef int compile_fields(self, plan, shape, list steps, list defaults) except -1:
        """Append the instructions of a struct to `steps`, and to `defaults` those that read nothing."""
        for step in plan.steps:
            child = None if shape is None else shape.child(step.attr)
            if step.presence == PlanPresence.PLAIN:
                self.compile_value(step, child, step.nullable, steps, defaults)
            elif step.presence == PlanPresence.REMAINING:
                steps.append({
                    "code": IF_MORE, "body": <size_t>self.build_value(step, child, False),
                    "absent": <size_t>self.build_default(step, child),
                })
            elif step.presence == PlanPresence.ABSENT:
                self.compile_default(step, child, defaults)
        if plan.flexible:
            steps += self.compile_tags(plan, shape)
        return 0

    cdef list compile_tags(self, plan, shape):
        cdef list tags = []
        for step in plan.tagged:
            child = None if shape is None else shape.child(step.attr)
            tags.append((
                step.tag, <size_t>self.build_value(step, child, step.nullable), <size_t>self.build_default(step, child),
                self.column_of(child),
            ))
        own = {step.tag for step in plan.tagged}
        tags += [(tag, 0, 0, 0) for tag in sorted(plan.known_tags - own)]
        return [{"code": TAGS, "tags": tags}]

    cdef Walk* build_value(self, step, shape, bint nullable) except NULL:
        cdef list steps = []
        cdef list defaults = []
        if step.op == PlanOp.STRUCT and not nullable:
            return self.build_struct(step.struct, shape)
        self.compile_value(step, shape, nullable, steps, defaults)
        return self.emit(steps, defaults)

    cdef Walk* build_default(self, step, shape) except NULL:
        cdef list defaults = []
        self.compile_default(step, shape, defaults)
        return self.emit([], defaults)

    cdef int compile_value(self, step, shape, bint nullable, list steps, list defaults) except -1:
        cdef size_t column = self.column_of(shape)
        cdef Column* c = <Column*>column
        op = step.op
        if op == PlanOp.STRUCT:
            if not nullable:
                return self.compile_fields(step.struct, shape, steps, defaults)
            body = <size_t>self.build_struct(step.struct, shape)
            steps.append({"code": MARKED, "length": step.length, "column": column, "body": body})
        elif op == PlanOp.STRING or op == PlanOp.BYTES:
            codes = (STRING_PASS, STRING_TEXT, STRING_VIEW) if op == PlanOp.STRING else (BYTES_PASS, BYTES_TEXT, BYTES_VIEW)
            steps.append({
                "code": codes[0 if c == NULL else 1 if c.form == TEXT else 2], "length": step.length, "nullable": nullable,
                "column": column, "high": step.high,
            })
        elif op == PlanOp.ARRAY:
            item = None if shape is None else shape.children[0]
            plain = step.item.fixed_size and op_is_plain(step.item, self.d.strict, c == NULL)
            steps.append({
                "code": NUMBERS if plain else ELEMENTS, "length": step.length, "nullable": nullable, "column": column,
                "least": max(1, step.item.min_size), "width": step.item.fixed_size,
                "body": <size_t>self.build_value(step.item, item, step.item.nullable),
            })
        else:
            code = FIXED_CODES.get(op)
            if op == PlanOp.UUID:
                code = UUID_VIEW if self.views else UUID_TEXT
            if step.bounded:
                code = BOUNDED
            elif c == NULL and not (op == PlanOp.BOOL and self.d.strict):
                code = PASS
            steps.append({
                "code": code, "size": step.fixed_size, "column": column, "low": step.low, "high": step.high,
                "signed": op not in (PlanOp.UINT16, PlanOp.UINT32),
            })
        return 0

    cdef int compile_default(self, step, shape, list defaults) except -1:
        cdef Column* c = <Column*>self.column_of(shape)
        value = step.default
        if shape is None:
            return 0
        if value is None:
            defaults.append({"code": DEFAULT_NULL, "column": <size_t>c})
        elif value is ...:
            inner = {one.attr: one for one in step.struct.steps}
            for child in shape.children:
                self.compile_default(inner[child.name], child, defaults)
        elif value == () or value == "" or value == b"" or value == 0:
            defaults.append({"code": DEFAULT_EMPTY, "column": <size_t>c})
        elif c.form == BITS:
            defaults.append({"code": DEFAULT_FIXED, "column": <size_t>c, "fixed": 1})
        elif c.form == FIXED:
            packed = struct.pack("=d", value) if step.op == PlanOp.FLOAT64 else value.to_bytes(
                c.width, "little" if struct.pack("=H", 1)[0] else "big", signed=True
            )
            fixed = int.from_bytes(packed.ljust(8, b"\0"), "little" if struct.pack("=H", 1)[0] else "big")
            defaults.append({"code": DEFAULT_FIXED, "column": <size_t>c, "fixed": fixed})
        else:
            text = value.encode() if isinstance(value, str) else value.bytes if step.op == PlanOp.UUID else bytes(value)
            self.keep.append(text)
            defaults.append({"code": DEFAULT_BYTES, "column": <size_t>c, "text": text, "place": len(self.constants)})
            self.constants += text
        return 0

    cdef Walk* emit(self, list steps, list defaults) except NULL:
        """The instructions as the interpreter walks them."""
        cdef Walk* walk = <Walk*>self.block(1, sizeof(Walk))
        cdef Instruction* it
        cdef int run = -1
        cdef int i
        cdef int j
        steps = steps + defaults
        walk.n = len(steps)
        walk.steps = <Instruction*>self.block(walk.n, sizeof(Instruction))
        for i, step in enumerate(steps):
            it = &walk.steps[i]
            it.code = step["code"]
            it.length = step.get("length", LENGTH_NONE)
            it.size = step.get("size", step.get("width", 0))
            it.nullable = step.get("nullable", False)
            it.signed_ = step.get("signed", False)
            it.column = <Column*><size_t>step.get("column", 0)
            it.body = <Walk*><size_t>step.get("body", 0)
            it.absent = <Walk*><size_t>step.get("absent", 0)
            it.least = step.get("least", 1)
            it.low = step.get("low", 0)
            it.high = step.get("high", 0)
            it.fixed = step.get("fixed", 0)
            it.place = step.get("place", 0)
            text = step.get("text", b"")
            it.text = <const uint8_t*><const char*>text
            it.n_text = len(text)
            tags = step.get("tags", ())
            it.n_tags = len(tags)
            it.tags = <Tagged*>self.block(it.n_tags, sizeof(Tagged))
            for j, (tag, value, absent, column) in enumerate(tags):
                it.tags[j].tag = tag
                it.tags[j].value = <Walk*><size_t>value
                it.tags[j].absent = <Walk*><size_t>absent
                it.tags[j].column = <Column*><size_t>column
            if it.code <= LAST_FIXED:
                if run < 0:
                    run = i
                walk.steps[run].need += it.size
            else:
                run = -1
        return walk

    # ---- a batch

    def decode(self, frames, keys, versions):
        """The columns of `frames`; keys and versions are int64, a row each."""
        import pyarrow

        with self.lock:
            capsule = self.decode_batch(frames, keys, versions)
        return pyarrow.RecordBatch._import_from_c_capsule(self.schema.__arrow_c_schema__(), capsule)

    cdef object decode_batch(self, frames, keys, versions):
        cdef Holder* h = new_holder()
        cdef ArrowArray* result = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        cdef ArrowArray* given
        cdef Source source
        cdef State state
        cdef Batch batch
        cdef Refusals refusals
        cdef const int64_t* key_of = NULL
        cdef const int64_t* version_of = NULL
        cdef int trouble = 0
        cdef bint done = False
        state.texts.data = NULL
        refusals.first = NULL
        refusals.n = refusals.room = 0
        try:
            if h == NULL or result == NULL:
                raise MemoryError
            array_capsule = frames.__arrow_c_array__()[1]
            given = <ArrowArray*>PyCapsule_GetPointer(array_capsule, "arrow_array")
            h.input = given[0]
            given.release = NULL
            kind = str(frames.type)
            open_source(&h.input, &source, kind == "large_binary", kind == "binary_view")
            if keys is not None:
                keys = keys.fill_null(INT64_MIN)
                key_of = <const int64_t*><size_t>keys.buffers()[1].address + <int64_t>keys.offset if len(keys) else NULL
            if versions is not None:
                versions = versions.fill_null(INT64_MIN)
                version_of = <const int64_t*><size_t>versions.buffers()[1].address + <int64_t>versions.offset if len(versions) else NULL
            self.d.only_one = keys is None and self.d.form in (MESSAGE, PREFIXED)
            self.open_state(h, &source, &state, &batch)
            self.limit_hints(input_bytes(&source))
            with nogil:
                trouble = read_rows(&self.d, &source, &state, &refusals, key_of, version_of)
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            if trouble == OVERFLOW:
                raise OverflowError("a column is too large for 32-bit offsets: decode smaller batches")
            if trouble:
                raise MemoryError
            self.close_state(&state, &batch)
            self.give_batch(result, &batch, &source, &refusals)
            if not self.views and h.input.release != NULL:
                h.input.release(&h.input)
                h.input.release = NULL
            capsule = PyCapsule_New(result, "arrow_array", release_capsule)
            done = True
            return capsule
        finally:
            give_back(refusals.first)
            give_back(state.texts.data)
            self.reset()
            if not done:
                free(result)
                if h != NULL:
                    drop_holder(h)

    cdef int open_state(self, Holder* h, Source* source, State* state, Batch* batch) except -1:
        """What views point to: the input's buffers, large ones in reach of an int32, and the constants behind them."""
        cdef int64_t n = 0
        cdef int64_t i
        cdef int64_t size = 0
        cdef int64_t* sizes
        cdef void** pointers
        memset(&state.texts, 0, sizeof(Column))
        state.strict = self.d.strict
        state.first_buffer = 0
        state.shift = CHUNK
        state.origin = source.data
        batch.holder = h
        batch.zeros = NULL
        batch.n_variadic = 0
        batch.variadic = NULL
        batch.sizes = NULL
        if not self.views:
            state.constants = 0
            return 0
        if source.views != NULL:
            state.shift = 40
            n = h.input.n_buffers - 3
        else:
            size = input_bytes(source) + first_byte(source)
            n = (size >> CHUNK) + 1
        pointers = <void**>held(h, take_zeros((n + 1) * sizeof(void*)))
        sizes = <int64_t*>held(h, take_zeros((n + 1) * 8))
        if pointers == NULL or sizes == NULL or make_room(&state.texts, len(self.constants)):
            raise MemoryError
        for i in range(n):
            if source.views != NULL:
                pointers[i] = <void*>source.buffers[2 + i]
                sizes[i] = (<const int64_t*>source.buffers[2 + n])[i]
            else:
                pointers[i] = <void*>(source.data + (i << CHUNK))
                sizes[i] = size - (i << CHUNK)
        memcpy(state.texts.data, <const char*>self.constants, len(self.constants))
        state.texts.used = len(self.constants)
        state.constants = <int32_t>n
        batch.n_variadic = n + 1
        batch.variadic = <const void**>pointers
        batch.sizes = sizes
        return 0

    cdef int close_state(self, State* state, Batch* batch) except -1:
        """Hand the views' own texts to the batch, behind the input's buffers: they do not grow any more."""
        cdef void* texts = state.texts.data
        if not self.views:
            return 0
        state.texts.data = NULL
        (<void**>batch.variadic)[state.constants] = held(batch.holder, texts)
        if batch.variadic[state.constants] == NULL:
            raise MemoryError
        (<int64_t*>batch.sizes)[state.constants] = state.texts.used
        return 0

    cdef void limit_hints(self, int64_t size) noexcept nogil:
        """No buffer starts larger than this batch could fill it, even if the previous batch was large."""
        cdef int i
        limit_level(self.d.head.rows, size)
        for i in range(self.d.n_messages):
            limit_level(self.d.messages[i].rows, size)

    cdef void reset(self) noexcept nogil:
        cdef int i
        reset_message(&self.d.head)
        for i in range(self.d.n_messages):
            reset_message(&self.d.messages[i])

    # ---- from columns to Arrow

    cdef int give_batch(self, ArrowArray* result, Batch* batch, Source* source, Refusals* refusals) except -1:
        cdef Holder* h = batch.holder
        cdef int64_t n = source.n
        cdef int64_t head = self.d.head.column.n_fields
        cdef int64_t at = 0
        cdef int i
        cdef bint fine
        # A message without a row in this batch is nothing but zeros: all such columns share them.
        batch.zeros = held(h, take_zeros((n + 1) * 16))
        if batch.zeros == NULL:
            raise MemoryError
        h.arrays = 1  # so that nothing is dropped while it is built
        for i in range(self.d.n_messages):
            at += self.d.messages[i].column != NULL
        fine = open_array(result, h, n, 1, head + at + 2)
        at = 0
        if fine:
            fine = give_rows(&self.d.head, batch, n, result.children, True)
            at = head
        for i in range(self.d.n_messages):
            if fine and self.d.messages[i].column != NULL:
                fine = give_rows(&self.d.messages[i], batch, n, &result.children[at], False)
                at += 1
        fine = fine and self.give_refusals(result.children[at], result.children[at + 1], batch, n, refusals)
        if not fine:
            raise MemoryError
        h.arrays -= 1
        return 0

    cdef bint give_refusals(self, ArrowArray* kinds, ArrowArray* offsets, Batch* b, int64_t n, Refusals* refusals):
        cdef Holder* h = b.holder
        cdef int32_t* ends
        cdef int64_t* places
        cdef uint8_t* valid
        cdef uint8_t* text
        cdef int64_t row = 0
        cdef int64_t i
        cdef int32_t end = 0
        cdef bytes word
        if not (open_array(kinds, h, n, 3, 0) and open_array(offsets, h, n, 2, 0)):
            return False
        kinds.null_count = offsets.null_count = n - refusals.n
        for i in range(3):
            kinds.buffers[i] = b.zeros
        for i in range(2):
            offsets.buffers[i] = b.zeros
        if refusals.n == 0:
            return True
        ends = <int32_t*>held(h, take((n + 1) * 4))
        places = <int64_t*>held(h, take_zeros(n * 8))
        valid = <uint8_t*>held(h, take_zeros(n // 8 + 1))
        text = <uint8_t*>held(h, take(refusals.n * 16))
        if ends == NULL or places == NULL or valid == NULL or text == NULL:
            return False
        if refusals.n > MOST // 16:
            raise OverflowError("a column is too large for 32-bit offsets: decode smaller batches")
        for i in range(refusals.n):
            while row <= refusals.first[i].row:
                ends[row] = end
                row += 1
            word = KINDS[refusals.first[i].kind]
            memcpy(text + end, <const char*>word, len(word))
            end += <int32_t>len(word)
            places[row - 1] = refusals.first[i].offset
            set_bit(valid, row - 1)
        while row <= n:
            ends[row] = end
            row += 1
        kinds.buffers[0] = valid
        kinds.buffers[1] = ends
        kinds.buffers[2] = text
        offsets.buffers[0] = valid
        offsets.buffers[1] = places
        return True


cdef Walk* make_walk(void* owner, Message* m, int64_t i) noexcept with gil:
    try:
        return (<Decoder>owner).build_version(m, i)
    except BaseException as error:
        (<Decoder>owner).failure = error
        return NULL


cdef bint op_is_plain(item, bint strict, bint passed):
    """Whether an array of such elements is copied, or passed over, as a block."""
    if item.bounded or (item.op == PlanOp.BOOL and strict):
        return False
    return passed or item.op in (PlanOp.INT8, PlanOp.INT16, PlanOp.INT32, PlanOp.INT64, PlanOp.FLOAT64)


