# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The native column decoder: walks plans over frames, and fills Arrow buffers without an object in between.

Laws:

* Output and errors are those of codec.columns_python.
* A frame that fails half-way is taken back: its row is null, what its columns had taken of it is cut off again.
* Nothing a peer sends reaches an allocation unchecked; a batch holds a multiple of its input's bytes and rows at most.
* The decoder keeps no buffer from batch to batch, only how long they were. It decodes one batch at a time.
"""

import struct
from threading import Lock

from kcoord_wire.codec.headers import API_VERSIONS, CONTROLLED_SHUTDOWN, UNSUPPORTED_VERSION
from kcoord_wire.codec.registry import registry as own_registry
from kcoord_wire.schema.plan import Op as PlanOp
from kcoord_wire.schema.plan import Presence as PlanPresence

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from columns_arrow cimport *
from columns_build cimport *
from columns_read cimport *
from cursor cimport LENGTH, NULL_VALUE, RANGE, TAG, TRAILING, TRUNCATED, UTF8, VALUE, VARINT, VERSION, load16, load32
from plan cimport (
    ABSENT, ARRAY, BOOL, BYTES, FLOAT64, INT8, INT16, INT32, INT64, LENGTH_NONE, PLAIN, REMAINING, STRING, STRUCT, TAGGED,
    UINT16, UINT32, UNION, UUID,
)
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

__all__ = ["PLAN_FORMAT", "Decoder"]

PLAN_FORMAT = {
    "Op": {
        "BOOL": <int>BOOL, "INT8": <int>INT8, "INT16": <int>INT16, "INT32": <int>INT32, "INT64": <int>INT64,
        "UINT16": <int>UINT16, "UINT32": <int>UINT32, "FLOAT64": <int>FLOAT64, "UUID": <int>UUID,
        "STRING": <int>STRING, "BYTES": <int>BYTES, "ARRAY": <int>ARRAY, "STRUCT": <int>STRUCT, "UNION": <int>UNION,
    },
    "Length": {
        "NONE": <int>LENGTH_NONE, "INT8": <int>LENGTH_INT8, "INT16": <int>LENGTH_INT16,
        "INT32": <int>LENGTH_INT32, "COMPACT": <int>LENGTH_COMPACT,
    },
    "Presence": {
        "PLAIN": <int>PLAIN, "TAGGED": <int>TAGGED, "ABSENT": <int>ABSENT, "REMAINING": <int>REMAINING,
    },
}

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
cdef dict CONSTANTS_OF = {1: "=B", 2: "=H", 4: "=I", 8: "=Q"}
cdef int64_t NONE_GIVEN = INT64_MIN
cdef int64_t API_VERSIONS_KEY = API_VERSIONS
cdef int64_t SHUTDOWN_KEY = CONTROLLED_SHUTDOWN
cdef int UNSUPPORTED = UNSUPPORTED_VERSION
cdef uint8_t NOWHERE[64]  # what an input without bytes points to


cdef enum:
    FEWEST = 4  # frames that are worth a block


cdef enum Form:
    REQUEST = 0
    RESPONSE = 1
    MESSAGE = 2
    PREFIXED = 3
    TYPED = 4


cdef struct Version:
    Walk* walk
    bint tags_before  # the header has a tag section


cdef struct Message:
    int64_t key
    int64_t first
    int64_t n_versions
    Version* versions
    Level* rows
    Column* column  # NULL where nothing of it is kept
    uint8_t* present
    int64_t n_present
    int64_t filled


cdef struct Source:
    int64_t n
    int64_t offset
    const uint8_t* valid
    const int32_t* small
    const int64_t* large
    const uint8_t* views
    const uint8_t* data
    const void** buffers  # of views


cdef struct Refusal:
    int64_t row
    int64_t offset
    int kind


cdef struct Refusals:
    Refusal* first
    int64_t n
    int64_t room


cdef void release_capsule(object capsule) noexcept:
    cdef ArrowArray* a = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if a.release != NULL:
        a.release(a)
    free(a)


@cython.final
@cython.no_gc_clear  # what the C plan points to lies in `blocks`, until the very end
cdef class Decoder:
    """`codec.columns_python.Decoder`, in C."""

    cdef Form form
    cdef bint strict
    cdef bint views
    cdef object schema
    cdef object lock
    cdef object keep
    cdef object blocks
    cdef dict columns  # id of a Shape -> its Column*, as an integer; only while the plan is built
    cdef bytes constants  # texts of defaults that are too long for a view
    cdef uint16_t* route  # by key, as uint16: which message, from 1
    cdef bint only_one
    cdef int n_messages
    cdef Message* messages
    cdef Message head
    cdef Walk* header
    cdef Walk* old_header
    cdef Walk* header_tags

    def __cinit__(self, codecs, shapes, by_key, form, schema, bint strict, registry, bint views):
        cdef int i
        self.blocks = []
        self.keep = [shapes]
        self.columns = {}
        self.constants = bytes(16)
        self.lock = Lock()
        self.form = {"request": REQUEST, "response": RESPONSE, "message": MESSAGE, "prefixed": PREFIXED, "typed": TYPED}[form]
        self.strict = strict
        self.views = views
        self.schema = schema
        self.build_head()
        self.n_messages = len(codecs)
        self.messages = <Message*>self.block(self.n_messages, sizeof(Message))
        self.route = <uint16_t*>self.block(65536, sizeof(uint16_t))
        self.only_one = by_key is None
        by_name = {shape.name: shape for shape in shapes}
        for i, codec in enumerate(codecs):
            self.build_message(&self.messages[i], codec, by_name.get(codec.name))
            if by_key is not None:
                self.route[<uint16_t>(codec.api_key & 0xFFFF)] = i + 1
        self.columns = None
        self.keep = tuple(self.keep)
        self.blocks = tuple(self.blocks)

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

    cdef int build_head(self) except -1:
        """The columns of what stands before the message, and the walks that fill them."""
        from kcoord_wire.codec.columns_shape import Shape

        cdef list columns = []
        names = {
            REQUEST: [("request_api_key", PlanOp.INT16), ("request_api_version", PlanOp.INT16),
                      ("correlation_id", PlanOp.INT32), ("client_id", PlanOp.STRING)],
            RESPONSE: [("correlation_id", PlanOp.INT32)],
            MESSAGE: [],
        }.get(self.form, [("version", PlanOp.INT16)])
        shape = Shape("head", PlanOp.STRUCT, tuple(Shape(name, op) for name, op in names))
        self.keep.append(shape)
        self.head.column = self.build_column(shape, columns)
        self.head.rows = self.new_level(columns)
        if self.form == REQUEST:
            header = own_registry["RequestHeader"]
            self.header = self.build_struct(header.plan(1), shape)
            self.old_header = self.build_struct(header.plan(0), shape)
            self.header_tags = self.emit(self.compile_tags(header.plan(2), None), [])
        else:
            self.header_tags = self.emit(self.compile_tags(own_registry["ResponseHeader"].plan(1), None), [])
        return 0

    cdef int build_message(self, Message* m, codec, shape) except -1:
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
        for i, version in enumerate(versions):
            m.versions[i].walk = self.build_struct(codec.plan(version), shape)
            before = version in codec.flexible_versions
            if self.form == REQUEST:
                before = before and not (m.key == SHUTDOWN_KEY and version == 0)
            elif self.form == RESPONSE:
                before = before and m.key != API_VERSIONS_KEY
            m.versions[i].tags_before = before
        return 0

    cdef Walk* build_struct(self, plan, shape) except NULL:
        cdef list steps = []
        cdef list defaults = []
        self.compile_fields(plan, shape, steps, defaults)
        return self.emit(steps, defaults)

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
        if len(tags) > 64:
            raise TypeError(f"{plan.name} has {len(tags)} tagged fields: more than 64 cannot be decoded into columns")
        return [{"code": TAGS, "tags": tags}]

    cdef Walk* build_value(self, step, shape, bint nullable) except NULL:
        cdef list steps = []
        cdef list defaults = []
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
            plain = step.item.fixed_size and op_is_plain(step.item, self.strict, c == NULL)
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
            elif c == NULL and not (op == PlanOp.BOOL and self.strict):
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
                keys = keys.fill_null(NONE_GIVEN)
                key_of = <const int64_t*><size_t>keys.buffers()[1].address + <int64_t>keys.offset if len(keys) else NULL
            if versions is not None:
                versions = versions.fill_null(NONE_GIVEN)
                version_of = <const int64_t*><size_t>versions.buffers()[1].address + <int64_t>versions.offset if len(versions) else NULL
            self.open_state(h, &source, &state, &batch)
            self.limit_hints(input_bytes(&source))
            with nogil:
                trouble = self.read_rows(&source, &state, &refusals, key_of, version_of)
            if trouble == OVERFLOW:
                raise OverflowError("a column is too large for 32-bit offsets: decode smaller batches")
            if trouble:
                raise MemoryError
            self.give_batch(result, &batch, &source, &refusals)
            if not self.views and h.input.release != NULL:
                h.input.release(&h.input)
                h.input.release = NULL
            capsule = PyCapsule_New(result, "arrow_array", release_capsule)
            done = True
            return capsule
        finally:
            give_back(refusals.first)
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
        cdef uint8_t* constants
        state.strict = self.strict
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
        constants = <uint8_t*>held(h, take(len(self.constants)))
        if pointers == NULL or sizes == NULL or constants == NULL:
            raise MemoryError
        for i in range(n):
            if source.views != NULL:
                pointers[i] = <void*>source.buffers[2 + i]
                sizes[i] = (<const int64_t*>source.buffers[2 + n])[i]
            else:
                pointers[i] = <void*>(source.data + (i << CHUNK))
                sizes[i] = size - (i << CHUNK)
        memcpy(constants, <const char*>self.constants, len(self.constants))
        pointers[n] = constants
        sizes[n] = len(self.constants)
        state.constants = <int32_t>n
        batch.n_variadic = n + 1
        batch.variadic = <const void**>pointers
        batch.sizes = sizes
        return 0

    cdef void limit_hints(self, int64_t size) noexcept nogil:
        """No buffer starts larger than this batch could fill it, whatever the last one did."""
        cdef int i
        limit_level(self.head.rows, size)
        for i in range(self.n_messages):
            limit_level(self.messages[i].rows, size)

    cdef void reset(self) noexcept nogil:
        cdef int i
        reset_message(&self.head)
        for i in range(self.n_messages):
            reset_message(&self.messages[i])

    cdef int read_rows(
        self, const Source* source, State* s, Refusals* refusals, const int64_t* key_of, const int64_t* version_of
    ) noexcept nogil:
        """Every row into its columns. 0, or the Trouble that ends the batch."""
        cdef int64_t row = 0
        cdef int64_t single = 0  # up to here, rows are read one by one
        cdef int64_t size = 0
        cdef int64_t key = 0
        cdef int64_t version = 0
        cdef int trouble
        cdef Frames frames
        cdef const uint8_t* start
        if source.n == 0:
            return 0
        if open_message(&self.head, source.n):
            return NO_MEMORY
        while row < source.n:
            if row >= single and source.views == NULL:
                self.gather(source, s, &frames, row, key_of, version_of)
                if frames.n >= FEWEST:
                    if self.read_block(&frames, s, source.n, 0 if key_of == NULL else key_of[row]):
                        row += frames.n
                        continue
                    single = row + frames.n
            start = frame_at(source, row, &size, s)
            if start != NULL:
                s.end = start + size
                if key_of != NULL:
                    key = key_of[row]
                if version_of != NULL:
                    version = version_of[row]
                if self.form == REQUEST:
                    trouble = self.read_request(start, s, row, source.n)
                elif self.form == RESPONSE:
                    trouble = self.read_response(start, s, row, source.n, key, version)
                elif self.form == MESSAGE:
                    trouble = self.read_message(start, s, row, source.n, key, version)
                elif self.form == PREFIXED:
                    trouble = self.read_prefixed(start, s, row, source.n, key)
                else:
                    trouble = self.read_typed(start, s, row, source.n)
                if rare(trouble):
                    if trouble >= OVERFLOW:
                        return trouble
                    if note(refusals, row, s.at - start, trouble):
                        return NO_MEMORY
            row += 1
        return 0

    # Frames of one message at one version, side by side. Whatever is not plain in one of them sends all of them back to be
    # read one by one, which says what is wrong with it.

    cdef inline void gather(
        self, const Source* source, State* s, Frames* f, int64_t row, const int64_t* key_of, const int64_t* version_of
    ) noexcept nogil:
        """The frames from `row` on that are of the same message and version as the first; none if that has neither."""
        cdef const uint8_t* start
        cdef int64_t size = 0
        cdef int64_t last = min(source.n, row + BLOCK)
        cdef int64_t first = row
        cdef uint32_t word
        cdef uint32_t first_word = 0
        f.n = 0
        f.row = row
        while row < last:
            start = frame_at(source, row, &size, s)
            if start == NULL:
                return
            word = 0
            if self.form == REQUEST or self.form == RESPONSE:
                if size < 4:
                    return
                if self.form == REQUEST:
                    word = load32(start)
            elif self.form != MESSAGE:
                if size < 2:
                    return
                word = load16(start)
            if f.n == 0:
                first_word = word
            elif word != first_word:
                return
            elif key_of != NULL and key_of[row] != key_of[first]:
                return
            elif version_of != NULL and version_of[row] != version_of[first]:
                return
            if f.n == 0:
                s.block_version = version_of[row] if version_of != NULL else 0
            f.p[f.n] = start
            f.end[f.n] = start + size
            f.n += 1
            row += 1

    cdef inline bint read_block(self, Frames* f, State* s, int64_t n, int64_t key) noexcept nogil:
        """Read the frames; False where that has to be done one by one, and nothing of them is left in any column."""
        cdef Message* m
        cdef Version* v
        cdef int64_t version = s.block_version
        cdef bint fine = True
        cdef int j
        if self.form == REQUEST:
            key = <int16_t>load16(f.p[0])
            version = <int16_t>load16(f.p[0] + 2)
        elif self.form == PREFIXED:
            version = <int16_t>load16(f.p[0])
        elif self.form == TYPED:
            key = <int16_t>load16(f.p[0])
        if self.form <= RESPONSE and (key == SHUTDOWN_KEY or key == API_VERSIONS_KEY):
            return False  # their headers have rules of their own
        m = NULL if key == NONE_GIVEN else self.message_of(key)
        if m == NULL:
            return False
        version -= m.first
        if not 0 <= version < m.n_versions:
            return False
        v = &m.versions[version]
        reach(&self.head, f.row)
        if self.form == REQUEST:
            fine = walk_block(self.header, f, s)
        elif self.form == RESPONSE:
            for j in range(f.n):
                (<uint32_t*>self.head.column.fields[0].data)[f.row + j] = load32(f.p[j])
                f.p[j] += 4
        elif self.form != MESSAGE:
            for j in range(f.n):
                (<uint16_t*>self.head.column.fields[0].data)[f.row + j] = load16(f.p[j])
                f.p[j] += 2
        if fine and v.tags_before and self.form <= RESPONSE:
            fine = walk_block(self.header_tags, f, s)
        if fine and m.column != NULL:
            if m.rows.capacity == 0 and open_message(m, n):
                return False
            reach(m, f.row)
        if fine:
            fine = walk_block(v.walk, f, s)
            if fine and self.strict:
                for j in range(f.n):
                    fine = fine and f.p[j] == f.end[j]
            if m.column != NULL:
                settle(m, f, fine)
        settle(&self.head, f, fine)
        return fine

    # Each gives 0, the kind of the refusal, which `s.at` places, or the Trouble.

    cdef inline Message* message_of(self, int64_t key) noexcept nogil:
        cdef int index
        if self.only_one:
            return &self.messages[0]
        if key < -0x8000 or key > 0x7FFF:
            return NULL
        index = self.route[<uint16_t>key]
        return &self.messages[index - 1] if index else NULL

    cdef inline int read_request(self, const uint8_t* start, State* s, int64_t row, int64_t n) noexcept nogil:
        cdef Walk* header = self.header
        cdef const uint8_t* p
        cdef Message* m
        cdef int64_t version
        if rare(s.end - start >= 4 and load16(start) == SHUTDOWN_KEY and load16(start + 2) == 0):
            header = self.old_header
        p = self.read_part(&self.head, header, start, s, row, n)
        if p == NULL:
            return s.kind
        m = self.message_of(<int16_t>load16(start))
        if m == NULL:
            return 0
        version = <int16_t>load16(start + 2) - m.first
        if rare(not 0 <= version < m.n_versions):
            s.at = start + 2
            return VERSION
        return self.read_rest(m, version, p, s, row, n, True)

    cdef inline int read_response(
        self, const uint8_t* start, State* s, int64_t row, int64_t n, int64_t key, int64_t version
    ) noexcept nogil:
        cdef Message* m
        if s.end - start >= 4:
            reach(&self.head, row)
            (<uint32_t*>self.head.column.fields[0].data)[row] = load32(start)
            mark(&self.head, row)
        m = self.message_of(key) if key != NONE_GIVEN and version != NONE_GIVEN else NULL
        if m == NULL or m.key != key:
            return 0
        if version and key == API_VERSIONS_KEY and s.end - start >= 6 and load16(start + 4) == UNSUPPORTED:
            if m.first == 0 and self.read_rest(m, 0, start + 4, s, row, n, True) == 0:
                return 0
            if s.kind >= OVERFLOW:
                return s.kind
        version -= m.first
        s.at = start
        if not 0 <= version < m.n_versions:
            return VERSION
        if s.end - start < 4:
            return TRUNCATED
        return self.read_rest(m, version, start + 4, s, row, n, True)

    cdef inline int read_message(
        self, const uint8_t* start, State* s, int64_t row, int64_t n, int64_t key, int64_t version
    ) noexcept nogil:
        cdef Message* m = self.message_of(key)
        if m == NULL or version == NONE_GIVEN:
            return 0
        version -= m.first
        if not 0 <= version < m.n_versions:
            s.at = start
            return VERSION
        return self.read_rest(m, version, start, s, row, n, True)

    cdef inline int read_prefixed(self, const uint8_t* start, State* s, int64_t row, int64_t n, int64_t key) noexcept nogil:
        cdef Message* m = self.message_of(key)
        cdef int64_t version = 0
        cdef int64_t known
        if s.end - start >= 2:
            version = <int16_t>load16(start)
            self.note_version(start, row)
        if m == NULL:
            return 0
        s.at = start
        if s.end - start < 2:
            return TRUNCATED
        known = min(version, m.first + m.n_versions - 1) - m.first
        if known < 0:
            return VERSION
        # A newer version may only append: what follows is left unread.
        return self.read_rest(m, known, start + 2, s, row, n, known == version - m.first)

    cdef inline int read_typed(self, const uint8_t* start, State* s, int64_t row, int64_t n) noexcept nogil:
        cdef Message* m
        s.at = start
        if s.end - start < 2:
            return TRUNCATED
        self.note_version(start, row)
        m = self.message_of(<int16_t>load16(start))
        if m == NULL:
            return 0
        if m.first > 0:
            return VERSION
        return self.read_rest(m, 0, start + 2, s, row, n, True)

    cdef inline void note_version(self, const uint8_t* start, int64_t row) noexcept nogil:
        reach(&self.head, row)
        (<uint16_t*>self.head.column.fields[0].data)[row] = load16(start)
        mark(&self.head, row)

    cdef inline int read_rest(
        self, Message* m, int64_t version, const uint8_t* p, State* s, int64_t row, int64_t n, bint whole
    ) noexcept nogil:
        """The rest of the header, where it has tags, and the message."""
        cdef Version* v = &m.versions[version]
        if v.tags_before and self.form <= RESPONSE:
            p = walk_over(self.header_tags, p, s, row)
            if p == NULL:
                return s.kind
        p = self.read_part(m, v.walk, p, s, row, n)
        if p == NULL:
            return s.kind
        if rare(p != s.end and whole and s.strict):
            unread(m, row)
            s.at = p
            return TRAILING
        return 0

    cdef inline const uint8_t* read_part(
        self, Message* m, Walk* walk, const uint8_t* p, State* s, int64_t row, int64_t n
    ) noexcept nogil:
        """Read into row `row` of the message's columns, or leave it empty."""
        if m.column == NULL:
            return walk_over(walk, p, s, row)
        if rare(m.rows.capacity == 0):
            if open_message(m, n):
                return refuse(s, NO_MEMORY, p)
        reach(m, row)
        p = walk_over(walk, p, s, row)
        if rare(p == NULL):
            leave_empty(m, row)
            return NULL
        mark(m, row)
        return p

    # ---- from columns to Arrow

    cdef int give_batch(self, ArrowArray* result, Batch* batch, Source* source, Refusals* refusals) except -1:
        cdef Holder* h = batch.holder
        cdef int64_t n = source.n
        cdef int64_t head = self.head.column.n_fields
        cdef int64_t at = 0
        cdef int i
        cdef bint fine
        # A message without a row in this batch is nothing but zeros: all such columns share them.
        batch.zeros = held(h, take_zeros((n + 1) * 16))
        if batch.zeros == NULL:
            raise MemoryError
        h.arrays = 1  # so that nothing is dropped while it is built
        for i in range(self.n_messages):
            at += self.messages[i].column != NULL
        fine = open_array(result, h, n, 1, head + at + 2)
        at = 0
        if fine:
            fine = give_rows(&self.head, batch, n, result.children, True)
            at = head
        for i in range(self.n_messages):
            if fine and self.messages[i].column != NULL:
                fine = give_rows(&self.messages[i], batch, n, &result.children[at], False)
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


cdef bint op_is_plain(item, bint strict, bint passed):
    """Whether an array of such elements is copied, or passed over, as a block."""
    if item.bounded or (item.op == PlanOp.BOOL and strict):
        return False
    return passed or item.op in (PlanOp.INT8, PlanOp.INT16, PlanOp.INT32, PlanOp.INT64, PlanOp.FLOAT64)


cdef int open_source(ArrowArray* a, Source* source, bint large, bint views) noexcept:
    source.n = a.length
    source.offset = a.offset
    source.valid = <const uint8_t*>a.buffers[0] if a.null_count != 0 else NULL
    source.small = NULL
    source.large = NULL
    source.views = NULL
    source.data = NOWHERE
    source.buffers = a.buffers
    if views:
        source.views = <const uint8_t*>a.buffers[1]
    else:
        if large:
            source.large = <const int64_t*>a.buffers[1]
        else:
            source.small = <const int32_t*>a.buffers[1]
        if a.buffers[2] != NULL:
            source.data = <const uint8_t*>a.buffers[2]
    return 0


cdef int64_t first_byte(const Source* source) noexcept nogil:
    if source.n == 0 or source.views != NULL:
        return 0
    return source.large[source.offset] if source.large != NULL else source.small[source.offset]


cdef int64_t input_bytes(const Source* source) noexcept nogil:
    """How many bytes the frames have together, at most."""
    cdef int64_t total = 0
    cdef int64_t i
    if source.n == 0:
        return 0
    if source.large != NULL:
        return source.large[source.offset + source.n] - source.large[source.offset]
    if source.small != NULL:
        return source.small[source.offset + source.n] - source.small[source.offset]
    for i in range(source.offset, source.offset + source.n):
        total += (<const int32_t*>(source.views + 16 * i))[0]
    return total


cdef inline const uint8_t* frame_at(const Source* source, int64_t row, int64_t* size, State* s) noexcept nogil:
    """Where the row's frame starts; NULL where it is null."""
    cdef int64_t i = source.offset + row
    cdef const int32_t* view
    if source.valid != NULL and not source.valid[i >> 3] >> (i & 7) & 1:
        return NULL
    if source.small != NULL:
        size[0] = source.small[i + 1] - source.small[i]
        s.safe = source.data + source.small[source.offset + source.n]
        return source.data + source.small[i]
    if source.large != NULL:
        size[0] = source.large[i + 1] - source.large[i]
        s.safe = source.data + source.large[source.offset + source.n]
        return source.data + source.large[i]
    view = <const int32_t*>(source.views + 16 * i)
    size[0] = view[0]
    if view[0] <= 12:
        # Nothing in it is longer than what lies in a view itself: no view points here.
        s.safe = <const uint8_t*>(view + 1) + view[0]
        s.origin = <const uint8_t*>(view + 1)
        return <const uint8_t*>(view + 1)
    s.first_buffer = view[2]
    s.origin = <const uint8_t*>source.buffers[2 + view[2]]
    s.safe = s.origin + view[3] + view[0]
    return s.origin + view[3]


cdef inline bint note(Refusals* refusals, int64_t row, int64_t offset, int kind) noexcept nogil:
    """True where memory is out."""
    cdef Refusal* more
    if refusals.n == refusals.room:
        more = <Refusal*>resized(refusals.first, (2 * refusals.room + 64) * sizeof(Refusal))
        if more == NULL:
            return True
        refusals.first = more
        refusals.room = 2 * refusals.room + 64
    more = &refusals.first[refusals.n]
    more.row = row
    more.offset = offset
    more.kind = kind
    refusals.n += 1
    return False


cdef int open_message(Message* m, int64_t n) noexcept nogil:
    m.present = <uint8_t*>take_zeros(n // 8 + 1)
    if m.present == NULL or set_capacity(m.rows, n):
        return NO_MEMORY
    return 0


cdef inline void reach(Message* m, int64_t row) noexcept nogil:
    """See that all rows before this one are written; this one is the next."""
    if m.filled < row:
        fill(m.rows, m.filled, row)
    m.filled = row + 1


cdef inline void mark(Message* m, int64_t row) noexcept nogil:
    set_bit(m.present, row)
    m.n_present += 1


cdef inline void settle(Message* m, Frames* f, bint fine) noexcept nogil:
    """Count the block's rows as read; or take them back."""
    cdef Column* c
    cdef int i
    cdef int j
    if fine:
        for j in range(f.n):
            mark(m, f.row + j)
        m.filled = f.row + f.n
        return
    take_back(m.column, f.row)
    for i in range(m.rows.n_columns):
        c = m.rows.columns[i]
        if c.valid != NULL:
            for j in range(f.n):
                set_bit(c.valid, f.row + j)
    m.filled = f.row


cdef void leave_empty(Message* m, int64_t row) noexcept nogil:
    """Take back what a frame that failed has left in its row."""
    cdef int i
    take_back(m.column, row)
    for i in range(m.rows.n_columns):
        write_empty(m.rows.columns[i], row)


cdef void unread(Message* m, int64_t row) noexcept nogil:
    """Take back a message that was read, for what came after it."""
    if m.column != NULL:
        m.present[row >> 3] &= ~(1 << (row & 7))
        m.n_present -= 1
        leave_empty(m, row)


cdef bint give_rows(Message* m, Batch* b, int64_t n, ArrowArray** to, bint fields) noexcept:
    """The message's column; or, of what stands before the messages, each of its fields."""
    cdef const uint8_t* present = <const uint8_t*>b.zeros
    cdef int i
    if m.rows.capacity:
        fill(m.rows, m.filled, n)
        present = NULL
        if m.n_present < n:
            present = <const uint8_t*>held(b.holder, m.present)
            m.present = NULL
            if present == NULL:
                return False
    if not fields:
        return give(m.column, to[0], b, n, present)
    for i in range(m.column.n_fields):
        if not give(m.column.fields[i], to[i], b, n, present):
            return False
    return True


cdef void limit_level(Level* level, int64_t size) noexcept nogil:
    cdef Column* c
    cdef int i
    for i in range(level.n_columns):
        c = level.columns[i]
        c.hint = min(c.hint, size)
        if c.items != NULL:
            c.items.hint = min(c.items.hint, size)
            limit_level(c.items, size)


cdef void reset_message(Message* m) noexcept nogil:
    abandon(m.rows)
    give_back(m.present)
    m.present = NULL
    m.n_present = 0
    m.filled = 0
