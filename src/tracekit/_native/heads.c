/* Parse the header fields of HTTP messages. */

#include "native.h"

/* The end of the line that begins at `at`, and the beginning of the next one (`end` if there is none). */
static const char *
line_end(const char *at, const char *end, const char *separator, size_t size, const char **next)
{
    const char *found = at;
    while (found < end && (found = memchr(found, separator[0], (size_t)(end - found))) != NULL) {
        if ((size_t)(end - found) >= size && memcmp(found, separator, size) == 0) {
            *next = found + size;
            return found;
        }
        found++;
    }
    *next = NULL;
    return end;
}

static int
is_blank(char character)
{
    return character == ' ' || character == '\t';
}

/* The line from `at` to `end` continues the header before it (obsolete line folding). */
static int
go_on(PyObject *headers, const char *at, const char *end)
{
    Py_ssize_t last = PyList_Size(headers) - 1;
    PyObject *before = PyList_GetItem(headers, last), *value = PyTuple_GetItem(before, 1);
    size_t size = (size_t)PyBytes_Size(value), more = (size_t)(end - at);
    PyObject *whole = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + 2 + more));
    if (whole == NULL) {
        return -1;
    }
    char *into = PyBytes_AsString(whole);
    memcpy(into, PyBytes_AsString(value), size);
    memcpy(into + size, "\r\n", 2);
    memcpy(into + size + 2, at, more);
    PyObject *header = PyTuple_Pack(2, PyTuple_GetItem(before, 0), whole);
    Py_DECREF(whole);
    return header == NULL ? -1 : PyList_SetItem(headers, last, header);
}

/* Append the header in the line from `at` to `end`, if it is one. */
static int
add_header(PyObject *headers, const char *at, const char *end)
{
    const char *colon = at < end ? memchr(at, ':', (size_t)(end - at)) : NULL, *value = colon + 1;
    if (colon == NULL) {
        return 0;
    }
    while (value < end && is_blank(*value)) {
        value++;
    }
    while (end > value && is_blank(end[-1])) {
        end--;
    }
    PyObject *header = Py_BuildValue(
        "(NN)", PyBytes_FromStringAndSize(at, colon - at), PyBytes_FromStringAndSize(value, end - value)
    );
    int added = header == NULL ? -1 : PyList_Append(headers, header);
    Py_XDECREF(header);
    return added;
}

PyDoc_STRVAR(fields_doc, "fields(head, separator, /)\n--\n\nSee pure.fields.");

static PyObject *
fields(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || PyBytes_Size(args[1]) < 1) {
        PyErr_SetString(PyExc_TypeError, "fields() takes a head and what ends its lines, as bytes");
        return NULL;
    }
    const char *head = PyBytes_AsString(args[0]), *end = head + PyBytes_Size(args[0]), *next;
    const char *separator = PyBytes_AsString(args[1]);
    size_t size = (size_t)PyBytes_Size(args[1]);
    const char *line = line_end(head, end, separator, size, &next);
    PyObject *first = PyBytes_FromStringAndSize(head, line - head), *headers = PyList_New(0), *result = NULL;
    int right = first != NULL && headers != NULL;
    while (right && next != NULL) {
        const char *at = next;
        line = line_end(at, end, separator, size, &next);
        right = (at < line && is_blank(*at) && PyList_Size(headers) ? go_on(headers, at, line) : add_header(headers, at, line)) == 0;
    }
    if (right) {
        result = PyTuple_Pack(2, first, headers);
    }
    Py_XDECREF(first);
    Py_XDECREF(headers);
    return result;
}

/* Whether a name equals `wanted`, which is in lower case. */
static int
is_named(const char *name, const char *wanted, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        char character = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] + ('a' - 'A')) : name[i];
        if (character != wanted[i]) {
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(header_values_doc, "header_values(headers, names, /)\n--\n\nSee pure.header_values.");

static PyObject *
header_values(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0]) || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "header_values() takes a list of headers and a tuple of names");
        return NULL;
    }
    Py_ssize_t size = PyList_Size(args[0]), names = PyTuple_Size(args[1]);
    PyObject *found = PyTuple_New(names);
    for (Py_ssize_t each = 0; found != NULL && each < names; each++) {
        PyObject *wanted = PyTuple_GetItem(args[1], each), *value = Py_None;
        for (Py_ssize_t i = size - 1; PyBytes_Check(wanted) && i >= 0; i--) {
            PyObject *header = PyList_GetItem(args[0], i);
            PyObject *name = PyTuple_Check(header) && PyTuple_Size(header) == 2 ? PyTuple_GetItem(header, 0) : NULL;
            if (name == NULL || !PyBytes_Check(name)) {
                PyErr_SetString(PyExc_TypeError, "a header is a name and a value, as bytes");
                Py_CLEAR(found);
                return NULL;
            }
            if (PyBytes_Size(name) == PyBytes_Size(wanted)
                && is_named(PyBytes_AsString(name), PyBytes_AsString(wanted), PyBytes_Size(wanted))) {
                value = PyTuple_GetItem(header, 1);
                break;
            }
        }
        if (PyTuple_SetItem(found, each, Py_NewRef(value)) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyMethodDef functions[] = {
    {"fields", (PyCFunction)(void (*)(void))fields, METH_FASTCALL, fields_doc},
    {"header_values", (PyCFunction)(void (*)(void))header_values, METH_FASTCALL, header_values_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_heads(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
