/* The extension module tracekit._native._compiled: the functions of pure.py, in C.
 *
 * It uses CPython's limited API only, so that one binary serves every version from 3.11 on, and keeps all mutable state in the module
 * object. */

#include "native.h"

#ifndef TRACEKIT_SOURCES
#define TRACEKIT_SOURCES ""
#endif

/* Read the constants that are shared with Python. */
static int
add_constants(NativeState *state)
{
    PyObject *common = PyImport_ImportModule("tracekit._native.common");
    if (common == NULL) {
        return -1;
    }
    state->in_order = PyObject_GetAttrString(common, "IN_ORDER");
    static const char *const names[] = {"LEVELS", "CONTAINERS", "PENDING", "PIECE"};
    Py_ssize_t *const into[] = {&state->levels, &state->containers, &state->pending, &state->piece};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        PyObject *number = PyObject_GetAttrString(common, names[i]);
        if (number != NULL) {
            *into[i] = PyLong_AsSsize_t(number);
            Py_DECREF(number);
        }
    }
    Py_DECREF(common);
    return PyErr_Occurred() ? -1 : 0;
}

/* Create the names of methods. */
static int
add_names(NativeState *state)
{
    static const char *const names[] = METHOD_NAMES;
    for (size_t i = 0; i < METHODS; i++) {
        state->method[i] = PyUnicode_InternFromString(names[i]);
        if (state->method[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

static int
module_exec(PyObject *module)
{
    NativeState *state = PyModule_GetState(module);
    PyObject *orjson = PyImport_ImportModule("orjson");
    if (orjson == NULL) {
        return -1;
    }
    state->dumps = PyObject_GetAttrString(orjson, "dumps");
    state->loads = state->dumps == NULL ? NULL : PyObject_GetAttrString(orjson, "loads");
    Py_DECREF(orjson);
    if (add_constants(state) < 0) {
        return -1;
    }
    state->has_sha256 = tracekit_has_sha256();
    if (!state->has_sha256) {
        PyObject *hashlib = PyImport_ImportModule("hashlib");
        if (hashlib == NULL) {
            return -1;
        }
        state->sha256 = PyObject_GetAttrString(hashlib, "sha256");
        Py_DECREF(hashlib);
        if (state->sha256 == NULL) {
            return -1;
        }
    }
    PyObject *reality = PyImport_ImportModule("tracekit._reality");
    if (reality == NULL) {
        return -1;
    }
    state->time_ns = PyObject_GetAttrString(reality, "time_ns");
    PyObject *random = PyObject_GetAttrString(reality, "urandom");
    Py_DECREF(reality);
    int keyed = random == NULL ? -1 : tracekit_make_key(state->key, random);
    Py_XDECREF(random);
    if (keyed < 0) {
        return -1;
    }
    PyObject *errors = PyImport_ImportModule("tracekit.errors");
    if (errors == NULL) {
        return -1;
    }
    state->unwritten = PyObject_GetAttrString(errors, "LogWriteError");
    Py_DECREF(errors);
    PyObject *sys = PyImport_ImportModule("sys");
    if (sys == NULL) {
        return -1;
    }
    state->getframe = PyObject_GetAttrString(sys, "_getframe");
    Py_DECREF(sys);
    PyObject *threading = PyImport_ImportModule("threading");
    if (threading == NULL) {
        return -1;
    }
    state->get_ident = PyObject_GetAttrString(threading, "get_ident");
    Py_DECREF(threading);
    state->has_ssse3 = tracekit_has_ssse3();
    if (state->loads == NULL || state->in_order == NULL || state->time_ns == NULL
        || state->unwritten == NULL || state->getframe == NULL || state->get_ident == NULL || add_names(state) < 0) {
        return -1;
    }
    if (tracekit_add_journal(module) < 0 || tracekit_add_pieces(module) < 0 || tracekit_add_lines(module) < 0 || tracekit_add_values(module) < 0
        || tracekit_add_callers(module) < 0 || tracekit_add_heads(module) < 0 || tracekit_add_secrets(module) < 0) {
        return -1;
    }
    /* A hash of the sources: a test compares it, to detect an installation that is older than its checkout. */
    return PyModule_AddStringConstant(module, "SOURCES", TRACEKIT_SOURCES);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    NativeState *state = PyModule_GetState(module);
    Py_VISIT(state->dumps);
    Py_VISIT(state->loads);
    Py_VISIT(state->in_order);
    Py_VISIT(state->sha256);
    Py_VISIT(state->time_ns);
    Py_VISIT(state->unwritten);
    Py_VISIT(state->getframe);
    Py_VISIT(state->get_ident);
    for (size_t i = 0; i < METHODS; i++) {
        Py_VISIT(state->method[i]);
    }
    return 0;
}

static int
module_clear(PyObject *module)
{
    NativeState *state = PyModule_GetState(module);
    Py_CLEAR(state->dumps);
    Py_CLEAR(state->loads);
    Py_CLEAR(state->in_order);
    Py_CLEAR(state->sha256);
    Py_CLEAR(state->time_ns);
    Py_CLEAR(state->unwritten);
    Py_CLEAR(state->getframe);
    Py_CLEAR(state->get_ident);
    for (size_t i = 0; i < METHODS; i++) {
        Py_CLEAR(state->method[i]);
    }
    return 0;
}

static void
module_free(void *module)
{
    (void)module_clear((PyObject *)module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tracekit._native._compiled",
    .m_doc = "The functions of tracekit._native.pure, in C.",
    .m_size = sizeof(NativeState),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    return PyModuleDef_Init(&module_definition);
}
