/* Write a plain text chunk of a stream as an entry, in one call. */

#include "native.h"

typedef struct {
    PyObject_HEAD
    PyObject *stream, *scope, *lane, *get, *run_state, *log, *kind, *step, *undo;
} Pieces;

/* Whether the run goes on, the stream was begun by the task or thread that is running now, and its lane has a number, which goes to
   `*id`. */
static int
is_there(NativeState *state, Pieces *pieces, PyObject **id)
{
    PyObject *ended = PyObject_GetAttr(pieces->run_state, state->method[ENDED]);
    int over = ended == NULL ? -1 : PyObject_IsTrue(ended);
    Py_XDECREF(ended);
    if (over) {
        return over < 0 ? -1 : 0;
    }
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

/* Set `*before` and `*tail` to the last characters of the stream before this piece, and with it; 0 if the piece needs the full check
   for secrets. */
static int
passes(NativeState *state, PyObject *stream, PyObject *text, PyObject **before, PyObject **tail)
{
    PyObject *run = PyObject_GetAttr(stream, state->method[THE_RUN]);
    PyObject *known = run == NULL ? NULL : PyObject_GetAttr(run, state->method[KNOWN]);
    PyObject *starts = known == NULL ? NULL : PyObject_GetAttr(known, state->method[STARTS]);
    PyObject *look = starts == NULL ? NULL : PyObject_GetAttr(stream, state->method[LOOK_AT]);
    *before = look == NULL ? NULL : PyObject_GetAttr(stream, state->method[TAIL]);
    PyObject *keep = *before == NULL ? NULL : PyObject_GetAttr(stream, state->method[KEEP]);
    *tail = keep == NULL ? NULL : PyObject_CallFunctionObjArgs(look, *before, text, keep, starts, NULL);
    Py_XDECREF(run);
    Py_XDECREF(known);
    Py_XDECREF(starts);
    Py_XDECREF(look);
    Py_XDECREF(keep);
    if (*tail == Py_None) {
        Py_CLEAR(*tail);
        return 0;
    }
    return *tail == NULL ? -1 : 1;
}

/* Write the entry of a chunk: 0 if it can't be written. */
static int
write_piece(NativeState *state, Pieces *pieces, PyObject *id, PyObject *data)
{
    PyObject *journal = PyObject_GetAttr(pieces->log, state->method[JOURNAL]);
    PyObject *seq = journal == NULL ? NULL
        : PyObject_CallMethodObjArgs(journal, state->method[APPEND], pieces->kind, id, pieces->step, data, NULL);
    Py_XDECREF(journal);
    Py_XDECREF(seq);
    if (seq == NULL && PyErr_ExceptionMatches(state->unwritten)) {
        PyErr_Clear();
        return 0;
    }
    return seq == NULL ? -1 : 1;
}

/* Whether a text has fewer than PIECE bytes; 0 also for one with half a surrogate pair. */
static int
is_short(NativeState *state, PyObject *text)
{
    Py_ssize_t size;
    if (PyUnicode_GetLength(text) >= state->piece) {
        return 0;
    }
    if (PyUnicode_AsUTF8AndSize(text, &size) == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    return size < state->piece;
}

/* Append to the entry what `after` returns: 0 if it finds that nothing can be written. */
static int
add_after(NativeState *state, PyObject *after, PyObject **data)
{
    if (after == Py_None) {
        return 1;
    }
    PyObject *more = PyObject_CallNoArgs(after);
    if (more == NULL) {
        if (!PyErr_ExceptionMatches(state->unwritten)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    if (!PyBytes_Check(more)) {
        Py_DECREF(more);
        PyErr_SetString(PyExc_TypeError, "what follows a piece is bytes");
        return -1;
    }
    PyBytes_ConcatAndDel(data, more);
    return *data == NULL ? -1 : 1;
}

/* The entry with what `after` returned could not be written. */
static int
undo(Pieces *pieces, PyObject *after)
{
    if (after == Py_None || pieces->undo == Py_None) {
        return 0;
    }
    PyObject *result = PyObject_CallNoArgs(pieces->undo);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Write a piece: 1 if that is done, 0 if it has to be done otherwise, -1 with an exception. */
static int
add_piece(NativeState *state, Pieces *pieces, PyObject *text, PyObject *after)
{
    PyObject *id = NULL, *before = NULL, *tail = NULL, *data = NULL;
    int done = 0;
    if (PyUnicode_CheckExact(text) && (done = is_short(state, text)) == 1 && (done = is_there(state, pieces, &id)) == 1
        && (done = passes(state, pieces->stream, text, &before, &tail)) == 1) {
        data = tracekit_of_text(state, pieces->step, text);
        done = data == NULL ? -1 : data != Py_None;
        if (done == 1 && (done = add_after(state, after, &data)) == 1) {
            done = PyObject_SetAttr(pieces->stream, state->method[TAIL], tail) < 0 ? -1 : write_piece(state, pieces, id, data);
            if (done == 0 && (PyObject_SetAttr(pieces->stream, state->method[TAIL], before) < 0 || undo(pieces, after) < 0)) {
                done = -1;
            }
        }
    }
    Py_XDECREF(id);
    Py_XDECREF(before);
    Py_XDECREF(tail);
    Py_XDECREF(data);
    return done;
}

PyDoc_STRVAR(add_doc, "add($self, text, after=None, /)\n--\n\nSee pure.Pieces.add.");

static PyObject *
pieces_add(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count < 1 || count > 2 || (names != NULL && PyTuple_Size(names))) {
        PyErr_SetString(PyExc_TypeError, "add() takes a text, and a function or None");
        return NULL;
    }
    int done = add_piece(state, (Pieces *)self, args[0], count == 2 ? args[1] : Py_None);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* The same for a piece as it was received. */
static int
add_received(NativeState *state, Pieces *pieces, PyObject *data, PyObject *after)
{
    if (!PyBytes_CheckExact(data) || PyBytes_Size(data) >= state->piece) {
        return 0;
    }
    PyObject *text = PyUnicode_DecodeUTF8(PyBytes_AsString(data), PyBytes_Size(data), NULL);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    int done = add_piece(state, pieces, text, after);
    Py_DECREF(text);
    return done;
}

PyDoc_STRVAR(receive_doc, "receive($self, kept, otherwise, after, data, /)\n--\n\nSee pure.Pieces.receive.");

static PyObject *
pieces_receive(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count != 4 || (names != NULL && PyTuple_Size(names)) || !(args[0] == Py_None || PyList_CheckExact(args[0]))) {
        PyErr_SetString(PyExc_TypeError, "receive() takes a list or None, a function, a function or None, and a piece");
        return NULL;
    }
    PyObject *data = args[3];
    int done = add_received(state, (Pieces *)self, data, args[2]);
    if (done == 0) {
        PyObject *result = PyObject_CallFunctionObjArgs(args[1], data, NULL);
        Py_XDECREF(result);
        done = result == NULL ? -1 : 1;
    } else if (done == 1 && args[0] != Py_None) {
        done = PyList_Append(args[0], data);
    }
    if (done < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
pieces_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *stream, *scope, *get, *run_state, *log, *kind, *step, *undo;
    if ((names != NULL && PyDict_Size(names))
        || !PyArg_ParseTuple(args, "OOOOOOOO:Pieces", &stream, &scope, &get, &run_state, &log, &kind, &step, &undo)) {
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
    pieces->run_state = Py_NewRef(run_state);
    pieces->log = Py_NewRef(log);
    pieces->kind = Py_NewRef(kind);
    pieces->step = Py_NewRef(step);
    pieces->undo = Py_NewRef(undo);
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
    Py_VISIT(pieces->run_state);
    Py_VISIT(pieces->log);
    Py_VISIT(pieces->kind);
    Py_VISIT(pieces->step);
    Py_VISIT(pieces->undo);
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
    Py_CLEAR(pieces->run_state);
    Py_CLEAR(pieces->log);
    Py_CLEAR(pieces->kind);
    Py_CLEAR(pieces->step);
    Py_CLEAR(pieces->undo);
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
    {"receive", (PyCFunction)(void (*)(void))pieces_receive, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, receive_doc},
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
