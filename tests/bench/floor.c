/* The floor under decoding: the time that allocating, filling and freeing the objects of a message takes.

   A Recipe is taken from a decoded message. Recipe.build() makes an equal tree by the allocators that any decoder has to call:
   PyObject_GC_New for an instance, its slots stored once; PyList_New; PyUnicode_New or PyBytes_FromStringAndSize and one memcpy;
   PyLong_FromLongLong. The recipe is one array in the order of the objects, its text and bytes one block beside it, so that
   walking it costs next to nothing. No length is read, nothing is compared with an end, no UTF-8 is checked, no slot is cleared.

   Nothing is done here that a decoder could not do: every object is new, except where two decodings of the same bytes gave one
   and the same object (None, a default shared by all messages), which is shared here too. What the decoder leaves untracked by
   the garbage collector is untracked here. Numbers go through PyLong_FromLongLong even where a small one comes from its cache. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

enum op { SHARED, NUMBER, TEXT, BYTES, LIST, INSTANCE };

typedef struct {
    enum op op;
    int tracked;    /* of a list or an instance */
    Py_ssize_t n;   /* characters, bytes, elements or slots */
    union {
        long long number;
        PyObject *object;   /* SHARED: owned by the recipe; INSTANCE: the class, owned too */
        Py_UCS4 highest;    /* TEXT: what PyUnicode_New is told */
    } u;
} Node;

typedef struct {
    PyObject_HEAD
    Node *nodes;
    Py_ssize_t n_nodes, room_nodes;
    char *text;
    Py_ssize_t n_text, room_text;
} Recipe;

typedef struct {
    const Node *node;
    const char *text;
} Walk;

/* Building */

static PyObject *build_container(const Node *node, Walk *walk);

static inline PyObject *
build(Walk *walk)
{
    const Node *node = walk->node++;
    PyObject *value;
    Py_ssize_t size;
    switch (node->op) {
    case SHARED:
        Py_INCREF(node->u.object);
        return node->u.object;
    case NUMBER:
        return PyLong_FromLongLong(node->u.number);
    case TEXT:
        value = PyUnicode_New(node->n, node->u.highest);
        if (value != NULL) {
            size = node->n * PyUnicode_KIND(value);
            memcpy(PyUnicode_DATA(value), walk->text, size);
            walk->text += size;
        }
        return value;
    case BYTES:
        value = PyBytes_FromStringAndSize(walk->text, node->n);
        walk->text += node->n;
        return value;
    default:
        return build_container(node, walk);
    }
}

static PyObject *
build_container(const Node *node, Walk *walk)
{
    PyObject *self;
    PyObject **items;
    if (node->op == LIST) {
        self = PyList_New(node->n);
        if (self == NULL) {
            return NULL;
        }
        if (!node->tracked) {
            PyObject_GC_UnTrack(self);
        }
        items = ((PyListObject *)self)->ob_item;
    }
    else {
        self = PyObject_GC_New(PyObject, (PyTypeObject *)node->u.object);
        if (self == NULL) {
            return NULL;
        }
        /* SAFETY: a Recipe admits only classes whose instances are a header and node->n slots, nothing else. */
        items = (PyObject **)((char *)self + sizeof(PyObject));
    }
    for (Py_ssize_t i = 0; i < node->n; i++) {
        items[i] = build(walk);
        if (items[i] == NULL) {
            while (++i < node->n) {
                items[i] = NULL;
            }
            Py_DECREF(self);
            return NULL;
        }
    }
    if (node->op == INSTANCE && node->tracked) {
        PyObject_GC_Track(self);
    }
    return self;
}

/* Taking the recipe of a message */

static Node *
new_node(Recipe *self, enum op op, Py_ssize_t n)
{
    if (self->n_nodes == self->room_nodes) {
        Py_ssize_t room = self->room_nodes ? 2 * self->room_nodes : 64;
        Node *nodes = PyMem_Realloc(self->nodes, room * sizeof(Node));
        if (nodes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        self->nodes = nodes;
        self->room_nodes = room;
    }
    Node *node = &self->nodes[self->n_nodes++];
    memset(node, 0, sizeof(Node));
    node->op = op;
    node->n = n;
    return node;
}

static int
add_text(Recipe *self, const void *data, Py_ssize_t size)
{
    if (self->n_text + size > self->room_text) {
        Py_ssize_t room = 2 * (self->n_text + size);
        char *text = PyMem_Realloc(self->text, room);
        if (text == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->text = text;
        self->room_text = room;
    }
    memcpy(self->text + self->n_text, data, size);
    self->n_text += size;
    return 0;
}

static int add(Recipe *self, PyObject *value, PyObject *twin);

static int
add_instance(Recipe *self, PyObject *value, PyObject *twin)
{
    PyTypeObject *cls = Py_TYPE(value);
    PyObject *names = PyObject_GetAttrString((PyObject *)cls, "__slots__");
    if (names == NULL) {
        return -1;
    }
    Py_ssize_t n = PyTuple_Check(names) ? PyTuple_GET_SIZE(names) : -1;
    if (n < 0 || !PyType_IS_GC(cls) || cls->tp_itemsize != 0
        || cls->tp_basicsize != (Py_ssize_t)(sizeof(PyObject) + n * sizeof(PyObject *))) {
        PyErr_Format(PyExc_TypeError, "%s has more than slots", cls->tp_name);
        Py_DECREF(names);
        return -1;
    }
    Py_DECREF(names);
    Node *node = new_node(self, INSTANCE, n);
    if (node == NULL) {
        return -1;
    }
    node->tracked = PyObject_GC_IsTracked(value);
    node->u.object = Py_NewRef((PyObject *)cls);
    PyObject **items = (PyObject **)((char *)value + sizeof(PyObject));
    PyObject **twins = (PyObject **)((char *)twin + sizeof(PyObject));
    for (Py_ssize_t i = 0; i < n; i++) {
        if (items[i] == NULL || twins[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s with an empty slot", cls->tp_name);
            return -1;
        }
        if (add(self, items[i], twins[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
add(Recipe *self, PyObject *value, PyObject *twin)
{
    Node *node;
    if (Py_TYPE(value) != Py_TYPE(twin)) {
        PyErr_SetString(PyExc_ValueError, "the two messages are not equal");
        return -1;
    }
    if (PyLong_CheckExact(value)) {
        long long number = PyLong_AsLongLong(value);
        if ((number == -1 && PyErr_Occurred()) || (node = new_node(self, NUMBER, 0)) == NULL) {
            return -1;
        }
        node->u.number = number;
        return 0;
    }
    if (value == twin) {
        node = new_node(self, SHARED, 0);
        if (node == NULL) {
            return -1;
        }
        node->u.object = Py_NewRef(value);
        return 0;
    }
    if (PyUnicode_CheckExact(value)) {
        node = new_node(self, TEXT, PyUnicode_GET_LENGTH(value));
        if (node == NULL) {
            return -1;
        }
        node->u.highest = PyUnicode_MAX_CHAR_VALUE(value);
        return add_text(self, PyUnicode_DATA(value), node->n * PyUnicode_KIND(value));
    }
    if (PyBytes_CheckExact(value)) {
        if (new_node(self, BYTES, PyBytes_GET_SIZE(value)) == NULL) {
            return -1;
        }
        return add_text(self, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    }
    if (PyList_CheckExact(value)) {
        Py_ssize_t n = PyList_GET_SIZE(value);
        if (n != PyList_GET_SIZE(twin)) {
            PyErr_SetString(PyExc_ValueError, "the two messages are not equal");
            return -1;
        }
        node = new_node(self, LIST, n);
        if (node == NULL) {
            return -1;
        }
        node->tracked = PyObject_GC_IsTracked(value);
        for (Py_ssize_t i = 0; i < n; i++) {
            if (add(self, PyList_GET_ITEM(value, i), PyList_GET_ITEM(twin, i)) < 0) {
                return -1;
            }
        }
        return 0;
    }
    return add_instance(self, value, twin);
}

static void
recipe_dealloc(Recipe *self)
{
    for (Py_ssize_t i = 0; i < self->n_nodes; i++) {
        if (self->nodes[i].op == SHARED || self->nodes[i].op == INSTANCE) {
            Py_XDECREF(self->nodes[i].u.object);
        }
    }
    PyMem_Free(self->nodes);
    PyMem_Free(self->text);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
recipe_new(PyTypeObject *cls, PyObject *args, PyObject *named)
{
    static char *names[] = {"message", "twin", NULL};
    PyObject *message, *twin;
    if (!PyArg_ParseTupleAndKeywords(args, named, "OO", names, &message, &twin)) {
        return NULL;
    }
    Recipe *self = (Recipe *)cls->tp_alloc(cls, 0);
    if (self != NULL && add(self, message, twin) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *
recipe_build(Recipe *self, PyObject *Py_UNUSED(none))
{
    Walk walk = {self->nodes, self->text};
    return build(&walk);
}

static PyMethodDef recipe_methods[] = {
    {"build", (PyCFunction)recipe_build, METH_NOARGS, "A new tree, equal to the message."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject recipe_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "floor.Recipe",
    .tp_doc = "Recipe(message, twin): what it takes to make `message`; `twin` is a second decoding of the same bytes.",
    .tp_basicsize = sizeof(Recipe),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = recipe_new,
    .tp_dealloc = (destructor)recipe_dealloc,
    .tp_methods = recipe_methods,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "floor", .m_size = -1};

PyMODINIT_FUNC
PyInit_floor(void)
{
    PyObject *self = PyModule_Create(&module);
    if (self != NULL && PyModule_AddType(self, &recipe_type) < 0) {
        Py_CLEAR(self);
    }
    return self;
}
