/* What a long text is known by while a process lasts. A cryptographic hash would take as long as everything else that is done with the text;
 * so each block is first condensed with NH, the universal hash of UMAC and VMAC: two of its passes, shifted against each other, under a
 * random key that never leaves the process. Two different texts of one length have the same condensed form with a probability of 2^-128,
 * whoever wrote them. */

#include "native.h"

/* The words of a block. The second pass begins with the third word of the key. */
#define WORDS 128
#define BLOCK (8 * WORDS)

#ifdef __SIZEOF_INT128__

__extension__ typedef unsigned __int128 Sum;

int
tracekit_make_key(uint64_t key[TRACEKIT_KEY], PyObject *random)
{
    PyObject *bytes = PyObject_CallFunction(random, "n", (Py_ssize_t)(TRACEKIT_KEY * sizeof(uint64_t)));
    int right = bytes != NULL && PyBytes_Check(bytes) && PyBytes_Size(bytes) == (Py_ssize_t)(TRACEKIT_KEY * sizeof(uint64_t));
    if (right) {
        memcpy(key, PyBytes_AsString(bytes), TRACEKIT_KEY * sizeof(uint64_t));
    }
    else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "the key is bytes");
    }
    Py_XDECREF(bytes);
    return right ? 0 : -1;
}

size_t
tracekit_condensed(size_t size)
{
    return size < 2 * BLOCK ? 0 : size / BLOCK * 2 * sizeof(Sum) + size % BLOCK + sizeof(uint64_t);
}

void
tracekit_condense(const uint64_t key[TRACEKIT_KEY], const char *text, size_t size, char *into)
{
    uint64_t length = size, words[WORDS];
    memcpy(into, &length, sizeof(length));
    into += sizeof(length);
    for (; size >= BLOCK; size -= BLOCK, text += BLOCK, into += 2 * sizeof(Sum)) {
        Sum sums[2] = {0, 0};
        memcpy(words, text, BLOCK);
        for (int i = 0; i < WORDS; i += 2) {
            sums[0] += (Sum)(words[i] + key[i]) * (words[i + 1] + key[i + 1]);
            sums[1] += (Sum)(words[i] + key[i + 2]) * (words[i + 1] + key[i + 3]);
        }
        memcpy(into, sums, sizeof(sums));
    }
    memcpy(into, text, size);
}

#else

int
tracekit_make_key(uint64_t *Py_UNUSED(key), PyObject *Py_UNUSED(random))
{
    return 0;
}

size_t
tracekit_condensed(size_t Py_UNUSED(size))
{
    return 0;
}

void
tracekit_condense(
    const uint64_t *Py_UNUSED(key), const char *Py_UNUSED(text), size_t Py_UNUSED(size), char *Py_UNUSED(into))
{
    Py_FatalError("there are no numbers of 128 bits");
}

#endif
