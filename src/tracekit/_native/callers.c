/* The running task or thread, and the caller of a function, classified by the files of its code. */

#include "native.h"

PyDoc_STRVAR(nearest_doc, "nearest(known, through, depth, /)\n--\n\nSee pure.nearest.");

static PyObject *
nearest(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "nearest() takes a dictionary, what is seen through, and a depth");
        return NULL;
    }
    NativeState *state = PyModule_GetState(module);
    PyObject *frame = PyObject_CallFunctionObjArgs(state->getframe, args[2], NULL), *result = NULL;
    if (frame == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_ValueError)) {
            return NULL;
        }
        PyErr_Clear(); /* called from C, without a Python caller */
        return Py_NewRef(args[1]);
    }
    while (result == NULL) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        PyObject *file = PyObject_GetAttr(code, state->method[CO_FILENAME]);
        Py_DECREF(code);
        PyObject *found = file == NULL ? NULL : PyDict_GetItemWithError(args[0], file);
        Py_XDECREF(file);
        if (found == NULL && PyErr_Occurred()) {
            break;
        }
        if (found != args[1]) {
            result = Py_NewRef(found == NULL ? args[1] : found);
            break;
        }
        PyObject *above = PyObject_GetAttr(frame, state->method[F_BACK]);
        Py_DECREF(frame);
        frame = above;
        if (frame == NULL || frame == Py_None) {
            result = frame == NULL ? NULL : Py_NewRef(args[1]);
            break;
        }
    }
    Py_XDECREF(frame);
    return result;
}

/* An imported module, or NULL. A new reference. Unlike PyImport_GetModule it never waits for another thread that imports the module. */
static PyObject *
imported(PyObject *name)
{
    return Py_XNewRef(PyDict_GetItemWithError(PyImport_GetModuleDict(), name));
}

/* The event loop that is running in this thread, or None. A new reference. */
static PyObject *
running_loop(NativeState *state)
{
    PyObject *events = imported(state->method[ASYNCIO_EVENTS]);
    PyObject *ask = events == NULL ? NULL : PyObject_GetAttr(events, state->method[RUNNING_LOOP]);
    Py_XDECREF(events);
    if (ask == NULL) { /* the module may still be importing */
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
                return NULL;
            }
            PyErr_Clear();
        }
        return Py_NewRef(Py_None);
    }
    PyObject *loop = PyObject_CallNoArgs(ask);
    Py_DECREF(ask);
    return loop;
}

PyObject *
tracekit_owner(NativeState *state)
{
    PyObject *loop = running_loop(state), *task = NULL;
    if (loop == NULL) {
        return NULL;
    }
    if (loop != Py_None) {
        PyObject *tasks = imported(state->method[ASYNCIO_TASKS]);
        if (tasks == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ImportError, "an event loop runs, and asyncio.tasks is not there");
            }
            Py_DECREF(loop);
            return NULL;
        }
        task = PyObject_CallMethodObjArgs(tasks, state->method[CURRENT_TASK], loop, NULL);
        Py_DECREF(tasks);
        if (task == NULL) {
            Py_DECREF(loop);
            return NULL;
        }
    }
    Py_DECREF(loop);
    PyObject *result = task == NULL || task == Py_None ? PyObject_CallNoArgs(state->get_ident) : PyLong_FromVoidPtr(task);
    Py_XDECREF(task);
    return result;
}

PyDoc_STRVAR(owner_doc, "owner()\n--\n\nSee pure.owner.");

static PyObject *
owner(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    return tracekit_owner(PyModule_GetState(module));
}

static PyMethodDef functions[] = {
    {"owner", owner, METH_NOARGS, owner_doc},
    {"nearest", (PyCFunction)(void (*)(void))nearest, METH_FASTCALL, nearest_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_callers(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
