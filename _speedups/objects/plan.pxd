# cython: language_level=3
"""The plan in C: kcoord_wire.schema.plan's StructPlan and Step with classes, slots and defaults resolved.

Laws: a Program owns every array and holds a reference to every Python object named here; all of it is read-only once built.
The numbers of the enums are those of the Python enums (codec.backend compares them, by `plan_format`, when it loads a module).
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

cdef extern from *:
    const uint32_t KCOORD_WIRE_SOURCES  # the digest of the sources, from setup.py


cdef enum Op:
    BOOL = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT16 = 5
    UINT32 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    BYTES = 10
    ARRAY = 11
    STRUCT = 12
    UNION = 13


cdef enum Length:
    LENGTH_NONE = 0
    LENGTH_INT8 = 1
    LENGTH_INT16 = 2
    LENGTH_INT32 = 3
    LENGTH_COMPACT = 4


cdef enum Presence:
    PLAIN = 0
    TAGGED = 1
    ABSENT = 2
    REMAINING = 3


cdef inline dict plan_format():
    """The numbers of the enums, by their names in Python."""
    return {
        "Op": {
            "BOOL": <int>BOOL, "INT8": <int>INT8, "INT16": <int>INT16, "INT32": <int>INT32, "INT64": <int>INT64,
            "UINT16": <int>UINT16, "UINT32": <int>UINT32, "FLOAT64": <int>FLOAT64, "UUID": <int>UUID,
            "STRING": <int>STRING, "BYTES": <int>BYTES, "ARRAY": <int>ARRAY, "STRUCT": <int>STRUCT,
            "UNION": <int>UNION,
        },
        "Length": {
            "NONE": <int>LENGTH_NONE, "INT8": <int>LENGTH_INT8, "INT16": <int>LENGTH_INT16,
            "INT32": <int>LENGTH_INT32, "COMPACT": <int>LENGTH_COMPACT,
        },
        "Presence": {
            "PLAIN": <int>PLAIN, "TAGGED": <int>TAGGED, "ABSENT": <int>ABSENT, "REMAINING": <int>REMAINING,
        },
    }


cdef enum Default:
    CONSTANT = 0  # an immutable object, shared
    EMPTY_LIST = 1  # a new list each time
    NEW_STRUCT = 2  # a new default instance each time


cdef struct Variant:
    int tag
    Struct* struct_


cdef struct Step:
    Op op
    Presence presence
    Length length
    bint nullable
    bint ignorable
    bint bounded
    Default default_kind
    int tag
    Py_ssize_t slot  # offset of the attribute in the instance; unused in an array's element
    Py_ssize_t min_size  # at least 1
    Py_ssize_t size  # on the wire, where every value takes the same number of bytes; else 0
    int64_t low
    int64_t high
    PyObject* default_
    PyObject* attr
    Struct* struct_
    Step* item
    Variant* variants
    int n_variants


cdef enum Code:
    """What a walk over a struct does at a field. The first eight are nearly all fields, in the form that they usually have."""

    FIELD_STRING = 0
    FIELD_BYTES = 1
    FIELD_INT32S = 2  # an array of INT32; up to here the field starts with a length
    FIELD_INT32 = 3
    FIELD_INT16 = 4
    FIELD_INT64 = 5
    FIELD_INT8 = 6
    FIELD_BOOL = 7
    FIELD_VALUE = 8  # any other value
    FIELD_CONSTANT = 9  # not on the wire; its default is an immutable object
    FIELD_DEFAULT = 10  # not on the wire; its default is made anew each time
    FIELD_TAGGED = 11  # in the tag section, if at all
    FIELD_END = 12  # after the last field: no tag section
    FIELD_TAGS = 13  # after the last field: a tag section, which is empty unless someone else's tags are in it
    FIELD_REST = 14  # what the bytes that are left decide, or a tag section with fields of its own: for the walk over steps


cdef struct Field:
    # A step in 24 bytes: what a walk needs while nothing is out of the ordinary. Where something is, the walk goes on from
    # the step of the same index. Lengths are compared with what is left less `need`, so that the fixed-size fields in between
    # and the next length's first bytes are taken without another look.
    uint8_t code  # a Code
    uint8_t length  # a Length
    uint8_t nullable
    uint8_t ignorable
    uint16_t need  # how many bytes after this field are read without another look at what is left
    uint16_t room  # how many bytes after this field are written without another look at the room
    Py_ssize_t slot
    PyObject* default_  # of FIELD_CONSTANT


cdef enum PassKind:
    PASS_STRING = 0
    PASS_RUN = 1  # bytes, or an array of numbers
    PASS_STRUCTS = 2  # an array of structs
    PASS_FIELD = 3  # anything else
    PASS_END = 4  # of the struct: the tag section, where it has one


cdef struct Pass:
    # How scanning.pxd passes over a part of a struct: neighbours that have a fixed width, then what follows them.
    PassKind kind
    bint compact  # its length is a varint
    bint nullable
    int fixed  # bytes of the neighbours
    int least  # with the bytes that what follows takes at least
    int64_t limit  # bytes of a string at most; of an element on the wire, in an array of structs at least
    Step* step


cdef struct Struct:
    PyTypeObject* cls
    Field* fields  # one for each step, in the same order; then one for the end
    uint16_t need  # from the struct's first byte on, as `Field.need`
    uint16_t room  # and as `Field.room`
    bint flexible
    bint holds_tags
    bint drops_tags  # what they hold is not written
    bint tracked  # by the garbage collector: it holds structs, or lists of them
    Py_ssize_t tags_slot
    Step* steps  # schema order
    int n_steps
    int n_tagged
    Step** tagged  # ascending by tag
    int n_known
    int* known_tags
    Pass* passes  # up to PASS_END
