/* Values on their way into the log: which of them orjson writes faithfully as they are.
 *
 * Only exact types are looked at, so that no code of the program's own runs, and nothing changes meanwhile. */

#include "native.h"

#include <math.h>

/* The bytes of a text in UTF-8, which it keeps for orjson; NULL without an exception where it has none (half a surrogate pair). */
static const char *
utf8_of(PyObject *text, Py_ssize_t *size)
{
    const char *bytes = PyUnicode_AsUTF8AndSize(text, size);
    if (bytes == NULL && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
    }
    return bytes;
}

/* Whether an int is in the range of orjson: -2**63 to 2**64 - 1. */
static int
in_range(PyObject *number)
{
    int overflow;
    (void)PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow <= 0) {
        return overflow == 0;
    }
    if (PyLong_AsUnsignedLongLong(number) == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* How one walk goes on: how many containers it may find on each level below the first, and has found. */
typedef struct {
    Py_ssize_t levels;
    Py_ssize_t width;
    Py_ssize_t *found;
} Plain;

static int plain_container(Plain *walk, PyObject *value, Py_ssize_t level);

/* 1, 0, or -1 with an exception, as of each function below. */
static int
plain_leaf(Plain *walk, PyObject *value, Py_ssize_t level)
{
    if (PyUnicode_CheckExact(value)) {
        Py_ssize_t size;
        if (utf8_of(value, &size) == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
        return 1;
    }
    if (value == Py_None || PyBool_Check(value)) {
        return 1;
    }
    if (PyLong_CheckExact(value)) {
        return in_range(value);
    }
    if (PyFloat_CheckExact(value)) {
        return isfinite(PyFloat_AsDouble(value)) != 0;
    }
    if (PyDict_CheckExact(value) || PyList_CheckExact(value)) {
        if (level + 1 >= walk->levels || ++walk->found[level + 1] > walk->width) {
            return 0;
        }
        return plain_container(walk, value, level + 1);
    }
    return 0;
}

/* Whether a text is a key that stands for itself: ASCII, and nothing that might be taken for a tag. */
static int
plain_key(PyObject *key)
{
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(key)) {
        return 0;
    }
    const char *bytes = utf8_of(key, &size);
    if (bytes == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return size == PyUnicode_GetLength(key) && memchr(bytes, '$', (size_t)size) == NULL;
}

static int
plain_container(Plain *walk, PyObject *value, Py_ssize_t level)
{
    int yes = 1;
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t position = 0;
        while (yes == 1 && PyDict_Next(value, &position, &key, &item)) {
            yes = plain_key(key);
            if (yes == 1) {
                yes = plain_leaf(walk, item, level);
            }
        }
        return yes;
    }
    for (Py_ssize_t i = 0; yes == 1 && i < PyList_Size(value); i++) {
        yes = plain_leaf(walk, PyList_GetItem(value, i), level);
    }
    return yes;
}

PyDoc_STRVAR(plain_doc, "plain(value, levels, width, /)\n--\n\nSee pure.plain.");

static PyObject *
plain(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *value;
    Plain walk;
    if (!PyArg_ParseTuple(args, "Onn:plain", &value, &walk.levels, &walk.width)) {
        return NULL;
    }
    if (!(PyDict_CheckExact(value) || PyList_CheckExact(value)) || walk.levels < 1) {
        PyErr_SetString(PyExc_TypeError, "plain() takes a dict or a list, and at least one level");
        return NULL;
    }
    walk.found = PyMem_Calloc((size_t)walk.levels, sizeof(Py_ssize_t));
    if (walk.found == NULL) {
        return PyErr_NoMemory();
    }
    int yes = plain_container(&walk, value, 0);
    PyMem_Free(walk.found);
    return yes < 0 ? NULL : PyBool_FromLong(yes);
}

static PyMethodDef functions[] = {
    {"plain", plain, METH_VARARGS, plain_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_values(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
