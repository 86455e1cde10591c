/* The lines of the journal: an entry in the layout of format version 1, chained to the one before. */

#include "native.h"

/* How many characters a hash has. */
#define HASH 64

static const char BEGIN[] = "{\"v\":1,\"seq\":";
static const char LANE[] = ",\"lane\":";
static const char PARENT[] = ",\"parent\":";
static const char BEFORE_HASH[] = ",\"hash\":\"";
static const char END[] = "\"}\n";
/* Of a 64-bit number, with its sign. */
#define DIGITS 20
#define LENGTH(text) (sizeof(text) - 1)

static char *
put(char *at, const void *bytes, size_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}

static char *
put_number(char *at, long long number)
{
    char digits[DIGITS], *first = digits + DIGITS;
    unsigned long long left = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    do {
        *--first = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0) {
        *at++ = '-';
    }
    return put(at, first, (size_t)(digits + DIGITS - first));
}

/* The hash of some bytes as hex digits, by OpenSSL, which uses what the processor has for it. */
static PyObject *
hex_hash(NativeState *state, PyObject *bytes)
{
    PyObject *hash = PyObject_CallFunctionObjArgs(state->sha256, bytes, NULL);
    if (hash == NULL) {
        return NULL;
    }
    PyObject *text = PyObject_CallMethodObjArgs(hash, state->hexdigest, NULL);
    Py_DECREF(hash);
    PyObject *hex = text == NULL ? NULL : PyUnicode_AsASCIIString(text);
    Py_XDECREF(text);
    if (hex != NULL && PyBytes_Size(hex) != HASH) {
        PyErr_SetString(PyExc_ValueError, "a hash has 64 digits");
        Py_CLEAR(hex);
    }
    return hex;
}

PyDoc_STRVAR(line_doc, "line(head, seq, middle, ts, lane, parent, tail, /)\n--\n\nSee pure.line.");

static PyObject *
line(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 7) {
        return PyErr_Format(PyExc_TypeError, "line() takes 7 arguments, not %zd", count);
    }
    PyObject *head = args[0], *middle = args[2], *tail = args[6];
    if (!PyBytes_Check(head) || PyBytes_Size(head) != HASH || !PyBytes_Check(middle) || !PyBytes_Check(tail)) {
        PyErr_SetString(PyExc_TypeError, "line() takes a hash, and what stands in the middle and at the end, as bytes");
        return NULL;
    }
    long long seq = PyLong_AsLongLong(args[1]), ts = PyLong_AsLongLong(args[3]);
    long long lane = PyLong_AsLongLong(args[4]), parent = PyLong_AsLongLong(args[5]);
    if ((seq == -1 || ts == -1 || lane == -1 || parent == -1) && PyErr_Occurred()) {
        return NULL;
    }
    char first[LENGTH(BEGIN) + DIGITS], second[LENGTH(LANE) + LENGTH(PARENT) + 3 * DIGITS], *at;
    size_t middle_size = (size_t)PyBytes_Size(middle), tail_size = (size_t)PyBytes_Size(tail);
    size_t first_size = (size_t)(put_number(put(first, BEGIN, LENGTH(BEGIN)), seq) - first);
    at = put_number(put(put_number(second, ts), LANE, LENGTH(LANE)), lane);
    if (parent) {
        at = put_number(put(at, PARENT, LENGTH(PARENT)), parent);
    }
    size_t second_size = (size_t)(at - second), body_size = first_size + middle_size + second_size + tail_size;

    /* What is hashed: the hash before it, and the body. */
    PyObject *hashed = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(HASH + body_size));
    if (hashed == NULL) {
        return NULL;
    }
    at = put(PyBytes_AsString(hashed), PyBytes_AsString(head), HASH);
    at = put(put(at, first, first_size), PyBytes_AsString(middle), middle_size);
    put(put(at, second, second_size), PyBytes_AsString(tail), tail_size);

    PyObject *result = NULL, *written = NULL;
    PyObject *hash = hex_hash(PyModule_GetState(module), hashed);
    if (hash != NULL) {
        size_t rest = LENGTH(BEFORE_HASH) + HASH + LENGTH(END);
        written = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(body_size + rest));
    }
    if (written != NULL) {
        at = put(PyBytes_AsString(written), PyBytes_AsString(hashed) + HASH, body_size);
        at = put(put(at, BEFORE_HASH, LENGTH(BEFORE_HASH)), PyBytes_AsString(hash), HASH);
        put(at, END, LENGTH(END));
        result = PyTuple_Pack(2, written, hash);
    }
    Py_DECREF(hashed);
    Py_XDECREF(hash);
    Py_XDECREF(written);
    return result;
}

static PyMethodDef functions[] = {
    {"line", (PyCFunction)(void (*)(void))line, METH_FASTCALL, line_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_journal(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
