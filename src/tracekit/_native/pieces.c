/* Write a plain text chunk of a stream as an entry, in one call. */

#include "native.h"

typedef struct {
    PyObject_HEAD
    PyObject *stream, *scope, *lane, *get, *log, *kind, *step;
} Pieces;

/* Whether the stream was begun by the task or thread that is running now and its lane has a number, which goes to `*id`. */
static int
is_there(NativeState *state, Pieces *pieces, PyObject **id)
{
    PyObject *scope = PyObject_CallNoArgs(pieces->get);
    Py_XDECREF(scope);
    if (scope != pieces->scope) {
        return scope == NULL ? -1 : 0;
    }
    PyObject *owner = PyObject_GetAttr(pieces->lane, state->method[OWNER]);
    PyObject *me = owner == NULL ? NULL : tracekit_owner(state);
    int same = me == NULL ? -1 : PyObject_RichCompareBool(owner, me, Py_EQ);
    Py_XDECREF(owner);
    Py_XDECREF(me);
    if (same != 1) {
        return same;
    }
    *id = PyObject_GetAttr(pieces->lane, state->method[ID]);
    if (*id == NULL) {
        return -1;
    }
    if (PyLong_AsLongLong(*id) < 0) {
        Py_CLEAR(*id);
        return PyErr_Occurred() ? -1 : 0;
    }
    return 1;
}

/* Set `*tail` to the last characters of the stream so far, this piece included; 0 if the piece needs the full check for secrets. */
static int
passes(NativeState *state, PyObject *stream, PyObject *text, PyObject **tail)
{
    PyObject *run = PyObject_GetAttr(stream, state->method[THE_RUN]);
    PyObject *known = run == NULL ? NULL : PyObject_GetAttr(run, state->method[KNOWN]);
    PyObject *starts = known == NULL ? NULL : PyObject_GetAttr(known, state->method[STARTS]);
    PyObject *look = starts == NULL ? NULL : PyObject_GetAttr(stream, state->method[LOOK_AT]);
    PyObject *before = look == NULL ? NULL : PyObject_GetAttr(stream, state->method[TAIL]);
    PyObject *keep = before == NULL ? NULL : PyObject_GetAttr(stream, state->method[KEEP]);
    *tail = keep == NULL ? NULL : PyObject_CallFunctionObjArgs(look, before, text, keep, starts, NULL);
    Py_XDECREF(run);
    Py_XDECREF(known);
    Py_XDECREF(starts);
    Py_XDECREF(look);
    Py_XDECREF(before);
    Py_XDECREF(keep);
    if (*tail == Py_None) {
        Py_CLEAR(*tail);
        return 0;
    }
    return *tail == NULL ? -1 : 1;
}

/* Write the entry of a chunk. */
static int
write_piece(NativeState *state, Pieces *pieces, PyObject *id, PyObject *data)
{
    PyObject *journal = PyObject_GetAttr(pieces->log, state->method[JOURNAL]);
    PyObject *seq = journal == NULL ? NULL
        : PyObject_CallMethodObjArgs(journal, state->method[APPEND], pieces->kind, id, pieces->step, data, NULL);
    Py_XDECREF(journal);
    Py_XDECREF(seq);
    return seq == NULL ? -1 : 1;
}

PyDoc_STRVAR(add_doc, "add($self, text, /)\n--\n\nSee pure.Pieces.add.");

static PyObject *
pieces_add(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Pieces *pieces = (Pieces *)self;
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count != 1 || (names != NULL && PyTuple_Size(names))) {
        PyErr_SetString(PyExc_TypeError, "add() takes a text");
        return NULL;
    }
    PyObject *id = NULL, *tail = NULL, *data = NULL;
    int done = 0;
    if (PyUnicode_CheckExact(args[0]) && PyUnicode_GetLength(args[0]) < state->piece
        && (done = is_there(state, pieces, &id)) == 1
        && (done = passes(state, pieces->stream, args[0], &tail)) == 1) {
        data = tracekit_of_text(state, pieces->step, args[0]);
        done = data == NULL ? -1 : data != Py_None;
        if (done == 1) {
            done = PyObject_SetAttr(pieces->stream, state->method[TAIL], tail) < 0 ? -1 : write_piece(state, pieces, id, data);
        }
    }
    Py_XDECREF(id);
    Py_XDECREF(tail);
    Py_XDECREF(data);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *
pieces_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *stream, *scope, *get, *log, *kind, *step;
    if ((names != NULL && PyDict_Size(names))
        || !PyArg_ParseTuple(args, "OOOOOO:Pieces", &stream, &scope, &get, &log, &kind, &step)) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "Pieces takes no named arguments");
    }
    PyObject *lane = PyObject_GetAttrString(scope, "lane");
    Pieces *pieces = lane == NULL ? NULL : (Pieces *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (pieces == NULL) {
        Py_XDECREF(lane);
        return NULL;
    }
    pieces->stream = Py_NewRef(stream);
    pieces->scope = Py_NewRef(scope);
    pieces->lane = lane;
    pieces->get = Py_NewRef(get);
    pieces->log = Py_NewRef(log);
    pieces->kind = Py_NewRef(kind);
    pieces->step = Py_NewRef(step);
    return (PyObject *)pieces;
}

static int
pieces_traverse(PyObject *self, visitproc visit, void *arg)
{
    Pieces *pieces = (Pieces *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(pieces->stream);
    Py_VISIT(pieces->scope);
    Py_VISIT(pieces->lane);
    Py_VISIT(pieces->get);
    Py_VISIT(pieces->log);
    Py_VISIT(pieces->kind);
    Py_VISIT(pieces->step);
    return 0;
}

static int
pieces_clear(PyObject *self)
{
    Pieces *pieces = (Pieces *)self;
    Py_CLEAR(pieces->stream);
    Py_CLEAR(pieces->scope);
    Py_CLEAR(pieces->lane);
    Py_CLEAR(pieces->get);
    Py_CLEAR(pieces->log);
    Py_CLEAR(pieces->kind);
    Py_CLEAR(pieces->step);
    return 0;
}

static void
pieces_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)pieces_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef pieces_methods[] = {
    {"add", (PyCFunction)(void (*)(void))pieces_add, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, add_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(pieces_doc, "See pure.Pieces.");

static PyType_Slot pieces_slots[] = {
    {Py_tp_doc, (void *)pieces_doc},
    {Py_tp_new, pieces_new},
    {Py_tp_methods, pieces_methods},
    {Py_tp_traverse, pieces_traverse},
    {Py_tp_clear, pieces_clear},
    {Py_tp_dealloc, pieces_dealloc},
    {0, NULL},
};

static PyType_Spec pieces_spec = {
    .name = "tracekit._native._compiled.Pieces",
    .basicsize = sizeof(Pieces),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = pieces_slots,
};

int
tracekit_add_pieces(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &pieces_spec, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return added;
}
