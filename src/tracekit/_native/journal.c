/* The lines of the journal: an entry in the layout of format version 1, chained to the one before. */

#include "native.h"

#include <stdatomic.h>
#include <structmember.h>

#define HASH TRACEKIT_HASH
/* While a larger body is hashed, other threads may run. */
#define LARGE (1 << 16)
/* How many bytes of a hash a text is known by. */
#define DIGEST_SIZE 16

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

/* The hash of two texts together; the caller keeps `rest`. */
static int
hash_of(NativeState *state, const char *first, size_t first_size, const char *rest, size_t size, unsigned char digest[32])
{
    char kept[HASH];
    if (state->has_sha256 && (size <= LARGE || first_size > sizeof(kept))) {
        tracekit_sha256(first, first_size, rest, size, digest);
        return 0;
    }
    if (state->has_sha256) { /* other threads may run, and replace `first` */
        memcpy(kept, first, first_size);
        Py_BEGIN_ALLOW_THREADS
        tracekit_sha256(kept, first_size, rest, size, digest);
        Py_END_ALLOW_THREADS
        return 0;
    }
    PyObject *both = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(first_size + size));
    if (both == NULL) {
        return -1;
    }
    put(put(PyBytes_AsString(both), first, first_size), rest, size);
    PyObject *hash = PyObject_CallFunctionObjArgs(state->sha256, both, NULL);
    Py_DECREF(both);
    PyObject *found = hash == NULL ? NULL : PyObject_CallMethodObjArgs(hash, state->method[DIGEST], NULL);
    Py_XDECREF(hash);
    int right = found != NULL && PyBytes_Size(found) == 32;
    if (right) {
        memcpy(digest, PyBytes_AsString(found), 32);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "a hash has 32 bytes");
    }
    Py_XDECREF(found);
    return right ? 0 : -1;
}

/* The hash of two texts together, as 64 hex digits. */
static int
hex_of(NativeState *state, const char *first, size_t first_size, const char *rest, size_t size, char *hex)
{
    unsigned char digest[32];
    if (hash_of(state, first, first_size, rest, size, digest) < 0) {
        return -1;
    }
    for (int i = 0; i < HASH / 2; i++) {
        *hex++ = "0123456789abcdef"[digest[i] >> 4];
        *hex++ = "0123456789abcdef"[digest[i] & 15];
    }
    return 0;
}

/* The hash of `head` and `size` bytes of a body, as 64 hex digits. */
int
tracekit_hash(NativeState *state, const char *head, const char *body, size_t size, char *hex)
{
    return hex_of(state, head, HASH, body, size, hex);
}

PyDoc_STRVAR(sha256_hex_doc, "sha256_hex(data, /)\n--\n\nSee pure.sha256_hex.");

static PyObject *
sha256_hex(PyObject *module, PyObject *data)
{
    char hex[HASH];
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "sha256_hex() takes bytes");
        return NULL;
    }
    return hex_of(PyModule_GetState(module), "", 0, PyBytes_AsString(data), (size_t)PyBytes_Size(data), hex) < 0
               ? NULL
               : PyUnicode_FromStringAndSize(hex, HASH);
}

/* The digest of a kind and a text, as an object. */
static PyObject *
digest_of(NativeState *state, const char *kind, size_t kind_size, const char *text, Py_ssize_t size)
{
    unsigned char found[32];
    if (text == NULL) {
        return NULL;
    }
    size_t less = tracekit_condensed((size_t)size);
    char *condensed = less ? PyMem_Malloc(less) : NULL;
    if (condensed != NULL) {
        tracekit_condense(state->key, text, (size_t)size, condensed);
    } else if (less) {
        return PyErr_NoMemory();
    }
    int hashed = less ? hash_of(state, kind, kind_size, condensed, less, found) : hash_of(state, kind, kind_size, text, (size_t)size, found);
    PyMem_Free(condensed);
    return hashed < 0 ? NULL : PyBytes_FromStringAndSize((const char *)found, DIGEST_SIZE);
}

PyDoc_STRVAR(digest_doc, "digest(kind, text, /)\n--\n\nSee pure.digest.");

static PyObject *
digest(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !(PyBytes_Check(args[1]) || PyUnicode_Check(args[1]))) {
        PyErr_SetString(PyExc_TypeError, "digest() takes bytes, and a text or bytes");
        return NULL;
    }
    Py_ssize_t size = 0;
    const char *text = PyBytes_Check(args[1]) ? PyBytes_AsString(args[1]) : PyUnicode_AsUTF8AndSize(args[1], &size);
    if (text == NULL) {
        return NULL;
    }
    if (PyBytes_Check(args[1])) {
        size = PyBytes_Size(args[1]);
    }
    return digest_of(PyModule_GetState(module), PyBytes_AsString(args[0]), (size_t)PyBytes_Size(args[0]), text, size);
}

/* The digest of a message with a long text, and its size; the digest of the text is kept. */
static PyObject *
message_digest(NativeState *state, PyObject *message, PyObject *text, PyObject *digests, Py_ssize_t *size)
{
    const char *letters = PyUnicode_AsUTF8AndSize(text, size);
    PyObject *of_text = digest_of(state, "s", 1, letters, *size), *address = PyLong_FromVoidPtr(text);
    PyObject *rest = PyDict_Copy(message), *data = NULL, *found = NULL;
    if (of_text != NULL && address != NULL && rest != NULL && PyDict_SetItem(digests, address, of_text) == 0
        && PyDict_SetItemString(rest, "content", Py_None) == 0) {
        data = PyObject_CallFunctionObjArgs(state->dumps, rest, NULL);
    }
    if (data != NULL) {
        char kind[1 + DIGEST_SIZE] = "c";
        memcpy(kind + 1, PyBytes_AsString(of_text), DIGEST_SIZE);
        found = digest_of(state, kind, sizeof(kind), PyBytes_AsString(data), PyBytes_Size(data));
        *size += PyBytes_Size(data);
    }
    Py_XDECREF(of_text);
    Py_XDECREF(address);
    Py_XDECREF(rest);
    Py_XDECREF(data);
    return found;
}

/* The digest of an element, and its size. */
static PyObject *
element_digest(NativeState *state, PyObject *element, Py_ssize_t least, PyObject *digests, Py_ssize_t *size)
{
    PyObject *text = PyDict_CheckExact(element) ? PyDict_GetItemString(element, "content") : NULL;
    if (text != NULL && PyUnicode_CheckExact(text) && PyUnicode_GetLength(text) >= least) {
        Py_INCREF(text);
        PyObject *found = message_digest(state, element, text, digests, size);
        Py_DECREF(text);
        return found;
    }
    PyObject *data = PyObject_CallFunctionObjArgs(state->dumps, element, NULL), *found = NULL;
    if (data != NULL) {
        *size = PyBytes_Size(data);
        found = digest_of(state, "e", 1, PyBytes_AsString(data), *size);
        Py_DECREF(data);
    }
    return found;
}

/* The keys, sizes and beginnings of a list's elements: see pure.elements. */
static PyObject *
elements_of(NativeState *state, PyObject *items, Py_ssize_t least, PyObject *before, PyObject *digests)
{
    Py_ssize_t size = 0;
    PyObject *running = Py_NewRef(before), *keys = PyList_New(0), *sizes = PyList_New(0), *beginnings = PyList_New(0);
    int right = keys != NULL && sizes != NULL && beginnings != NULL;
    for (Py_ssize_t i = 0; right && i < PyList_Size(items); i++) {
        PyObject *element = Py_NewRef(PyList_GetItem(items, i));
        PyObject *key = element_digest(state, element, least, digests, &size);
        PyObject *number = key == NULL ? NULL : PyLong_FromSsize_t(size);
        PyObject *next = number == NULL ? NULL
            : digest_of(state, PyBytes_AsString(running), (size_t)PyBytes_Size(running), PyBytes_AsString(key), DIGEST_SIZE);
        right = next != NULL && PyList_Append(keys, key) == 0 && PyList_Append(sizes, number) == 0
            && PyList_Append(beginnings, next) == 0;
        Py_DECREF(element);
        Py_XDECREF(key);
        Py_XDECREF(number);
        if (next != NULL) {
            Py_DECREF(running);
            running = next;
        }
    }
    PyObject *result = right ? PyTuple_Pack(3, keys, sizes, beginnings) : NULL;
    Py_DECREF(running);
    Py_XDECREF(keys);
    Py_XDECREF(sizes);
    Py_XDECREF(beginnings);
    return result;
}

PyDoc_STRVAR(elements_doc, "elements(items, least, running, digests, /)\n--\n\nSee pure.elements.");

static PyObject *
elements(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyList_CheckExact(args[0]) || !PyBytes_Check(args[2]) || !PyDict_CheckExact(args[3])) {
        PyErr_SetString(PyExc_TypeError, "elements() takes a list, a number, bytes and a dictionary");
        return NULL;
    }
    Py_ssize_t least = PyLong_AsSsize_t(args[1]);
    if (least == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return elements_of(PyModule_GetState(module), args[0], least, args[2], args[3]);
}

/* What unknown() looks for, and has found. Nothing in it is owned. */
typedef struct {
    Py_ssize_t text, element, least, most;
    PyObject *digests;       /* by the identity of a text or list */
    PyObject *places, *keys; /* the result */
} KnownBy;

/* Note that `key` can be referred to at a place, which is taken (NULL: an exception is set). */
static int
add_place(KnownBy *known, PyObject *key, PyObject *place)
{
    PyObject *both = place == NULL ? NULL : PyTuple_Pack(2, key, place);
    int added = both == NULL ? -1 : PyList_Append(known->places, both);
    Py_XDECREF(place);
    Py_XDECREF(both);
    return added;
}

/* Note what a text is known by: 0 where it is too long, -1 with an exception. */
static int
known_text(NativeState *state, KnownBy *known, PyObject *way, PyObject *text)
{
    Py_ssize_t size;
    const char *letters = PyUnicode_AsUTF8AndSize(text, &size);
    if (letters == NULL) {
        return -1;
    }
    if (size >= known->most) {
        return 0;
    }
    PyObject *address = PyLong_FromVoidPtr(text);
    PyObject *key = address == NULL ? NULL : PyDict_GetItemWithError(known->digests, address);
    if (key != NULL) {
        Py_INCREF(key);
    } else if (!PyErr_Occurred()) {
        key = digest_of(state, "s", 1, letters, size);
        if (key != NULL && PyDict_SetItem(known->digests, address, key) < 0) {
            Py_CLEAR(key);
        }
    }
    int done = key != NULL && add_place(known, key, Py_NewRef(way)) == 0 && PyList_Append(known->keys, key) == 0 ? 1 : -1;
    Py_XDECREF(address);
    Py_XDECREF(key);
    return done;
}

/* Whether a place is inside a list: a step of the way to it is a number. */
static int
is_in_a_list(PyObject *steps)
{
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < PyTuple_Size(steps); i++) {
        found = PyLong_Check(PyTuple_GetItem(steps, i));
    }
    return found;
}

/* Note what can be referred to in the list at `way`, of which elements_of() says `about`. */
static int
place_list(KnownBy *known, PyObject *about, PyObject *way)
{
    PyObject *keys = PyTuple_GetItem(about, 0), *sizes = PyTuple_GetItem(about, 1), *beginnings = PyTuple_GetItem(about, 2);
    Py_ssize_t count = PyList_Size(keys), size = 0;
    int done = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size += PyLong_AsSsize_t(PyList_GetItem(sizes, i));
    }
    if (size < known->least) {
        return 0;
    }
    for (Py_ssize_t i = 0; done == 0 && i < count; i++) {
        if (PyLong_AsSsize_t(PyList_GetItem(sizes, i)) >= known->element) {
            PyObject *step = Py_BuildValue("(n)", i);
            done = step == NULL ? -1 : add_place(known, PyList_GetItem(keys, i), PySequence_Concat(way, step));
            Py_XDECREF(step);
        }
    }
    for (Py_ssize_t i = 0; done == 0 && i < count; i++) {
        PyObject *place = Py_BuildValue("(OnO)", way, i + 1, i == count - 1 ? Py_True : Py_False);
        done = add_place(known, PyList_GetItem(beginnings, i), place);
    }
    return done;
}

/* Note what the elements of the list at `way`, and its beginnings, are known by; `steps` is the end of the way. */
static int
known_list(NativeState *state, KnownBy *known, PyObject *list, PyObject *way, PyObject *steps)
{
    PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0), *address = PyLong_FromVoidPtr(list);
    PyObject *about = nothing == NULL || address == NULL ? NULL : elements_of(state, list, known->least, nothing, known->digests);
    int done = about != NULL && PyDict_SetItem(known->digests, address, about) == 0 ? 1 : -1;
    Py_XDECREF(nothing);
    Py_XDECREF(address);
    Py_ssize_t count = done < 0 ? 0 : PyList_Size(PyTuple_GetItem(about, 0));
    for (Py_ssize_t i = 0; done > 0 && i < count; i++) {
        if (PyList_Append(known->keys, PyList_GetItem(PyTuple_GetItem(about, 0), i)) < 0
            || PyList_Append(known->keys, PyList_GetItem(PyTuple_GetItem(about, 2), i)) < 0) {
            done = -1;
        }
    }
    if (done > 0 && !is_in_a_list(steps) && place_list(known, about, way) < 0) {
        done = -1;
    }
    Py_XDECREF(about);
    return done;
}

static int
known_in(NativeState *state, KnownBy *known, PyObject *tree, PyObject *way, Py_ssize_t element)
{
    PyObject *found = tracekit_parts(tree, known->text, element);
    int done = found == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; done > 0 && i < PyList_Size(found); i++) {
        PyObject *one = PyList_GetItem(found, i), *part = PyTuple_GetItem(one, 1);
        PyObject *there = PySequence_Concat(way, PyTuple_GetItem(one, 0));
        if (there == NULL) {
            done = -1;
        } else if (PyUnicode_CheckExact(part)) {
            done = known_text(state, known, there, part);
        } else if (Py_EnterRecursiveCall(" while the parts of a value are looked for")) {
            done = -1;
        } else {
            if ((done = known_list(state, known, part, there, PyTuple_GetItem(one, 0))) > 0) {
                done = known_in(state, known, part, there, 0);
            }
            Py_LeaveRecursiveCall();
        }
        Py_XDECREF(there);
    }
    Py_XDECREF(found);
    return done;
}

/* Whether any of a list's keys is in a dictionary. */
static int
is_any_in(PyObject *keys, PyObject *dict)
{
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < PyList_Size(keys); i++) {
        found = PyDict_Contains(dict, PyList_GetItem(keys, i));
    }
    return found;
}

/* What can be referred to in a tree, unless it has lists of which something is known: see pure.unknown. `known` has the sizes and
 * digests. */
static PyObject *
unknown_places(NativeState *state, KnownBy *known, PyObject *tree, PyObject *way, PyObject *young, PyObject *old)
{
    known->places = PyList_New(0);
    known->keys = PyList_New(0);
    int done = known->places == NULL || known->keys == NULL ? -1 : known_in(state, known, tree, way, known->element);
    for (int i = 0; done > 0 && known->element && i < 2; i++) {
        int found = is_any_in(known->keys, i ? old : young);
        done = found < 0 ? -1 : !found;
    }
    PyObject *result = done < 0 ? NULL : Py_NewRef(done ? known->places : Py_None);
    Py_XDECREF(known->places);
    Py_XDECREF(known->keys);
    return result;
}

PyDoc_STRVAR(unknown_doc, "unknown(tree, way, sizes, digests, young, old, /)\n--\n\nSee pure.unknown.");

static PyObject *
unknown(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 6 || !PyDict_CheckExact(args[0]) || !PyTuple_CheckExact(args[1]) || !PyTuple_CheckExact(args[2])
        || !PyDict_CheckExact(args[3]) || !PyDict_CheckExact(args[4]) || !PyDict_CheckExact(args[5])) {
        PyErr_SetString(PyExc_TypeError, "unknown() takes a dictionary, two tuples and three dictionaries");
        return NULL;
    }
    KnownBy known = {.digests = args[3]};
    if (!PyArg_ParseTuple(args[2], "nnnn:unknown", &known.text, &known.element, &known.least, &known.most)) {
        return NULL;
    }
    return unknown_places(PyModule_GetState(module), &known, args[0], args[1], args[4], args[5]);
}

/* Whether a value of a tree is a table: see pure.is_table. */
static int
is_table(PyObject *value, Py_ssize_t least)
{
    PyObject *key, *item;
    Py_ssize_t position = 0;
    if (PyDict_CheckExact(value)) {
        int found = PyDict_Size(value) >= least;
        while (found && PyDict_Next(value, &position, &key, &item)) {
            found = !PyDict_CheckExact(item) && !PyList_CheckExact(item);
        }
        return found;
    }
    int found = PyList_CheckExact(value) && PyList_Size(value) >= least;
    for (; found && position < PyList_Size(value); position++) {
        item = PyList_GetItem(value, position);
        found = PyList_CheckExact(item) && PyList_Size(item) == 2;
    }
    return found;
}

PyDoc_STRVAR(as_it_is_doc, "as_it_is(data, tree, look, way, sizes, least, digests, young, old, /)\n--\n\nSee pure.as_it_is.");

static PyObject *
as_it_is(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 9 || !PyBytes_CheckExact(args[0]) || !PyTuple_CheckExact(args[3]) || !PyTuple_CheckExact(args[4])
        || !PyDict_CheckExact(args[6]) || !PyDict_CheckExact(args[7]) || !PyDict_CheckExact(args[8])) {
        PyErr_SetString(PyExc_TypeError, "as_it_is() takes bytes, a tree, a function, two tuples, a number and three dictionaries");
        return NULL;
    }
    PyObject *data = args[0], *tree = args[1], *key, *item;
    Py_ssize_t least = PyLong_AsSsize_t(args[5]), size = PyBytes_Size(data), tables, position = 0;
    KnownBy known = {.digests = args[6]};
    if (PyErr_Occurred()
        || !PyArg_ParseTuple(args[4], "nnnnn:as_it_is", &known.text, &known.element, &known.least, &known.most, &tables)) {
        return NULL;
    }
    if (!PyDict_CheckExact(tree) || tracekit_may_be_tagged(PyBytes_AsString(data), (size_t)size)) {
        Py_RETURN_NONE;
    }
    PyObject *looked = PyObject_CallFunctionObjArgs(args[2], data, NULL);
    int closer = looked == NULL ? -1 : PyObject_IsTrue(looked);
    Py_XDECREF(looked);
    if (closer < 0) {
        return NULL;
    }
    while (!closer && tables && size >= least && PyDict_Next(tree, &position, &key, &item)) {
        closer = is_table(item, tables);
    }
    if (closer) {
        Py_RETURN_NONE;
    }
    if (size < least) {
        return PyList_New(0);
    }
    return unknown_places(PyModule_GetState(module), &known, tree, args[3], args[7], args[8]);
}

/* The parts of an entry, but for its hash. Nothing in it is owned. */
typedef struct {
    PyObject *head; /* the hash of the entry before */
    PyObject *middle;
    PyObject *tail;
    long long seq, ts, lane, parent;
} Entry;

/* Make an entry's line and its hash. */
static int
make_line(NativeState *state, const Entry *entry, PyObject **line, PyObject **hash)
{
    if (!PyBytes_Check(entry->head) || PyBytes_Size(entry->head) != HASH || !PyBytes_Check(entry->middle)
        || !PyBytes_Check(entry->tail)) {
        PyErr_SetString(PyExc_TypeError, "a line has a hash before it, a middle and a tail, as bytes");
        return -1;
    }
    char first[LENGTH(BEGIN) + DIGITS], second[LENGTH(LANE) + LENGTH(PARENT) + 3 * DIGITS], *at;
    size_t middle_size = (size_t)PyBytes_Size(entry->middle), tail_size = (size_t)PyBytes_Size(entry->tail);
    size_t first_size = (size_t)(put_number(put(first, BEGIN, LENGTH(BEGIN)), entry->seq) - first);
    at = put_number(put(put_number(second, entry->ts), LANE, LENGTH(LANE)), entry->lane);
    if (entry->parent) {
        at = put_number(put(at, PARENT, LENGTH(PARENT)), entry->parent);
    }
    size_t second_size = (size_t)(at - second), body_size = first_size + middle_size + second_size + tail_size;

    *line = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(body_size + LENGTH(BEFORE_HASH) + HASH + LENGTH(END)));
    if (*line == NULL) {
        return -1;
    }
    char *body = PyBytes_AsString(*line);
    at = put(put(body, first, first_size), PyBytes_AsString(entry->middle), middle_size);
    at = put(put(at, second, second_size), PyBytes_AsString(entry->tail), tail_size);
    char *digits = put(at, BEFORE_HASH, LENGTH(BEFORE_HASH));
    if (tracekit_hash(state, PyBytes_AsString(entry->head), body, body_size, digits) < 0
        || (*hash = PyBytes_FromStringAndSize(digits, HASH)) == NULL) {
        Py_CLEAR(*line);
        return -1;
    }
    put(digits + HASH, END, LENGTH(END));
    return 0;
}

/* Read ints of Python, `count` of them. */
static int
numbers(PyObject *const *objects, long long *const *into, int count)
{
    for (int i = 0; i < count; i++) {
        *into[i] = PyLong_AsLongLong(objects[i]);
        if (*into[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(line_doc, "line(head, seq, middle, ts, lane, parent, tail, /)\n--\n\nSee pure.line.");

static PyObject *
line(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 7) {
        return PyErr_Format(PyExc_TypeError, "line() takes 7 arguments, not %zd", count);
    }
    Entry entry = {.head = args[0], .middle = args[2], .tail = args[6]};
    PyObject *const objects[] = {args[1], args[3], args[4], args[5]};
    long long *const into[] = {&entry.seq, &entry.ts, &entry.lane, &entry.parent};
    PyObject *line, *hash;
    if (numbers(objects, into, 4) < 0 || make_line(PyModule_GetState(module), &entry, &line, &hash) < 0) {
        return NULL;
    }
    PyObject *result = PyTuple_Pack(2, line, hash);
    Py_DECREF(line);
    Py_DECREF(hash);
    return result;
}

/* How JSON writes the ASCII characters that do not stand for themselves, as orjson does. */
static char *
put_escaped(char *at, unsigned char character)
{
    static const char hex[] = "0123456789abcdef", names[] = "btn?fr";
    *at++ = '\\';
    if (character >= ' ') { /* a quote or a backslash */
        *at++ = (char)character;
    } else if (character >= '\b' && character <= '\r' && character != '\v') {
        *at++ = names[character - '\b'];
    } else {
        at = put(at, "u00", 3);
        *at++ = hex[character >> 4];
        *at++ = hex[character & 15];
    }
    return at;
}

static const char STEP[] = ",\"step\":";
static const char OUTPUT[] = ",\"output\":\"";
/* A longer text is left to orjson. */
#define SHORT 1024

PyObject *
tracekit_of_text(NativeState *state, PyObject *number, PyObject *value)
{
    long long step = PyLong_AsLongLong(number);
    if (step == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            return NULL;
        }
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    char line[LENGTH(STEP) + LENGTH(OUTPUT) + DIGITS + 6 * SHORT + 1];
    char *at = put(put_number(put(line, STEP, LENGTH(STEP)), step), OUTPUT, LENGTH(OUTPUT));
    if (size > SHORT) {
        PyObject *data = PyObject_CallFunctionObjArgs(state->dumps, value, Py_None, state->in_order, NULL);
        PyObject *whole = data == NULL ? NULL
            : PyBytes_FromStringAndSize(NULL, at - line - 1 + PyBytes_Size(data));
        if (whole != NULL) { /* its quotes are in the data */
            put(put(PyBytes_AsString(whole), line, (size_t)(at - line - 1)), PyBytes_AsString(data), (size_t)PyBytes_Size(data));
        }
        Py_XDECREF(data);
        return whole;
    }
    for (const char *end = text + size; text < end; text++) {
        unsigned char character = (unsigned char)*text;
        if (character < ' ' || character == '"' || character == '\\') {
            at = put_escaped(at, character);
        } else {
            *at++ = (char)character;
        }
    }
    *at++ = '"';
    return PyBytes_FromStringAndSize(line, at - line);
}

PyDoc_STRVAR(of_text_doc, "of_text(step, text, /)\n--\n\nSee pure.of_text.");

static PyObject *
of_text(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyUnicode_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "of_text() takes a number and a text");
        return NULL;
    }
    return tracekit_of_text(PyModule_GetState(module), args[0], args[1]);
}

/* -- Chain ------------------------------------------------------------------------------------------------------------- */

/* The attributes of pure.Chain, which its subclass sets and reads. */
typedef struct {
    PyObject_HEAD
    PyObject *fd;
    PyObject *end;       /* (seq, hash, ts, size): replaced whole */
    PyObject *in_flight; /* such a tuple, or None */
    PyObject *middles;   /* of each kind of entry */
    PyObject *lock, *reads;
    char stopped, always, lazy, asleep;
    atomic_ulong written;     /* how many entries; who rests looks at it without the interpreter's lock */
    PyThread_type_lock roused; /* held while nobody has been roused */
} Chain;

/* (seq, hash, ts, size) of the entry after `end`, and its line. A new reference, and one in `line`. Its time is now where it has none. */
static PyObject *
next_end(NativeState *state, PyObject *end, Entry *entry, PyObject **line)
{
    PyObject *hash, *now, *result = NULL;
    long long before, last, size;
    if (!PyTuple_Check(end) || PyTuple_Size(end) != 4) {
        PyErr_SetString(PyExc_TypeError, "the end of a log is (seq, hash, ts, size)");
        return NULL;
    }
    PyObject *const objects[] = {PyTuple_GetItem(end, 0), PyTuple_GetItem(end, 2), PyTuple_GetItem(end, 3)};
    long long *const into[] = {&before, &last, &size};
    if (numbers(objects, into, 3) < 0) {
        return NULL;
    }
    if (!entry->ts) {
        if ((now = PyObject_CallNoArgs(state->time_ns)) == NULL) {
            return NULL;
        }
        entry->ts = PyLong_AsLongLong(now);
        Py_DECREF(now);
        if (entry->ts == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    entry->head = PyTuple_GetItem(end, 1);
    entry->seq = before + 1;
    if (entry->ts < last) {
        entry->ts = last;
    }
    if (make_line(state, entry, line, &hash) < 0) {
        return NULL;
    }
    result = Py_BuildValue("LOLL", entry->seq, hash, entry->ts, size + PyBytes_Size(*line));
    Py_DECREF(hash);
    if (result == NULL) {
        Py_CLEAR(*line);
    }
    return result;
}

/* The write of a line has raised: an OSError goes to `_give_up`, which raises what it means. */
static void
write_failed(PyObject *self)
{
    PyObject *type, *error, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_OSError)) {
        return;
    }
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(error, traceback);
    }
    Py_XDECREF(PyObject_CallMethod(self, "_give_up", "iO", 0, error));
    Py_DECREF(type);
    Py_DECREF(error);
    Py_XDECREF(traceback);
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "_give_up() did not raise");
    }
}

/* Write lines made to follow `end`, after which the log ends at `after`: 0 if it no longer ends at `end`, -1 with an exception. They are
   in flight from just before the write, without a line of Python between. */
static int
write_lines(NativeState *state, Chain *chain, PyObject *write, PyObject *end, PyObject *line, PyObject *after)
{
    if (chain->end != end) {
        return 0;
    }
    PyObject *former = chain->in_flight;
    chain->in_flight = Py_NewRef(after);
    PyObject *written = PyObject_CallFunctionObjArgs(write, chain->fd, line, NULL);
    Py_XDECREF(former); /* None */
    if (written == NULL) {
        write_failed((PyObject *)chain);
        return -1;
    }
    long long count = PyLong_AsLongLong(written);
    if (count != PyBytes_Size(line)) {
        PyObject *done = PyErr_Occurred() ? NULL
            : PyObject_CallMethodObjArgs((PyObject *)chain, state->method[COMPLETE], line, written, NULL);
        if (done == NULL) {
            Py_DECREF(written);
            return -1;
        }
        Py_DECREF(done);
    }
    Py_DECREF(written);
    if (chain->in_flight == after) { /* else a signal handler has written after it */
        former = chain->end;
        chain->end = chain->in_flight;
        chain->in_flight = Py_NewRef(Py_None);
        atomic_fetch_add_explicit(&chain->written, 1, memory_order_relaxed);
        Py_DECREF(former);
    }
    return 1;
}

/* What stands between `seq` and the time in entries of a kind. A new reference. */
static PyObject *
middle_of(NativeState *state, Chain *chain, PyObject *kind)
{
    PyObject *middle = PyDict_GetItemWithError(chain->middles, kind);
    if (middle != NULL) {
        return Py_NewRef(middle);
    }
    return PyErr_Occurred() ? NULL : PyObject_CallMethodObjArgs((PyObject *)chain, state->method[MIDDLE], kind, NULL);
}

/* Makes the lines of `what` after `end`: a new reference to the end of the log with them, and one in `data`. */
typedef PyObject *(*Maker)(NativeState *state, Chain *chain, PyObject *end, void *what, PyObject **data);

static PyObject *
one_line(NativeState *state, Chain *Py_UNUSED(chain), PyObject *end, void *entry, PyObject **line)
{
    return next_end(state, end, entry, line);
}

static int
settle(NativeState *state, Chain *chain)
{
    PyObject *settled = PyObject_CallMethodObjArgs((PyObject *)chain, state->method[SETTLE], NULL);
    Py_XDECREF(settled);
    return settled == NULL ? -1 : 0;
}

/* Write what `make` makes of `what`, at the end of the log. Returns the `seq` of the last entry. */
static PyObject *
write_made(NativeState *state, Chain *chain, Maker make, void *what)
{
    PyObject *result = NULL, *write = NULL;
    for (;;) {
        if ((chain->in_flight != Py_None || chain->stopped) && settle(state, chain) < 0) {
            break;
        }
        Py_XDECREF(write);
        if ((write = PyObject_GetAttr((PyObject *)chain, state->method[OS_WRITE])) == NULL) {
            break;
        }
        PyObject *data = NULL, *end = Py_NewRef(chain->end);
        PyObject *after = make(state, chain, end, what, &data);
        /* To make those may run the garbage collector, and so a finalizer that writes an entry: this one comes after it then. */
        int done = after == NULL ? -1 : write_lines(state, chain, write, end, data, after);
        if (done > 0) {
            result = Py_NewRef(PyTuple_GetItem(after, 0));
        }
        Py_DECREF(end);
        Py_XDECREF(data);
        Py_XDECREF(after);
        if (done) {
            break;
        }
    }
    Py_XDECREF(write);
    return result;
}

/* Whether what is needed to write is there. */
static int
can_write(Chain *chain)
{
    if (chain->fd == NULL || chain->end == NULL || chain->in_flight == NULL || chain->middles == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a Chain needs _fd, _end, _in_flight and _middles");
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(put_doc, "_put($self, end, data, after, /)\n--\n\nSee pure.Chain._put.");

static PyObject *
chain_put(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count != 3 || (names != NULL && PyTuple_Size(names)) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "_put() takes an end, lines and the end after them");
        return NULL;
    }
    PyObject *write = can_write((Chain *)self) ? PyObject_GetAttr(self, state->method[OS_WRITE]) : NULL;
    int done = write == NULL ? -1 : write_lines(state, (Chain *)self, write, args[0], args[1], args[2]);
    Py_XDECREF(write);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

PyDoc_STRVAR(write_doc, "_write($self, kind, lane, parent, tail, /)\n--\n\nSee pure.Chain._write.");

static PyObject *
chain_write(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Chain *chain = (Chain *)self;
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count != 4 || (names != NULL && PyTuple_Size(names))) {
        PyErr_SetString(PyExc_TypeError, "_write() takes kind, lane, parent and tail");
        return NULL;
    }
    if (!can_write(chain)) {
        return NULL;
    }
    Entry entry = {.tail = args[3]};
    long long *const into[] = {&entry.lane, &entry.parent};
    if (numbers(args + 1, into, 2) < 0) {
        return NULL;
    }
    PyObject *middle = middle_of(state, chain, args[0]);
    if (middle == NULL) {
        return NULL;
    }
    entry.middle = middle;
    PyObject *result = write_made(state, chain, one_line, &entry);
    Py_DECREF(middle);
    return result;
}

/* Write an entry while the lock is held. */
static PyObject *
append_held(NativeState *state, Chain *chain, PyObject *const *args, int sync)
{
    PyObject *self = (PyObject *)chain;
    if (sync) {
        PyObject *looked = PyObject_CallMethodObjArgs(self, state->method[LOOK], NULL);
        if (looked == NULL) {
            return NULL;
        }
        Py_DECREF(looked);
    }
    int reads = PyObject_IsTrue(chain->reads);
    if (reads < 0) {
        return NULL;
    }
    if (!reads) {
        return PyObject_CallMethodObjArgs(self, state->method[WRITE], args[0], args[1], args[2], args[3], NULL);
    }
    PyObject *entry = PyTuple_Pack(4, args[0], args[1], args[2], args[3]);
    PyObject *seq = entry == NULL ? NULL : PyObject_CallMethodObjArgs(self, state->method[WRITE_WITH_READS], entry, NULL);
    Py_XDECREF(entry);
    return seq;
}

PyDoc_STRVAR(read_doc, "read($self, kind, lane, parent, name, value, /)\n--\n\nSee pure.Chain.read.");

static PyObject *
chain_read(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Chain *chain = (Chain *)self;
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count != 5 || (names != NULL && PyTuple_Size(names))) {
        PyErr_SetString(PyExc_TypeError, "read() takes kind, lane, parent, name and value");
        return NULL;
    }
    if (chain->reads == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a Chain needs _reads");
        return NULL;
    }
    PyObject *reads = Py_NewRef(chain->reads), *read = PyTuple_Pack(5, args[0], args[1], args[2], args[3], args[4]);
    PyObject *done = read == NULL ? NULL : PyObject_CallMethodObjArgs(reads, state->method[APPEND], read, NULL);
    Py_XDECREF(read);
    Py_ssize_t pending = done == NULL ? -1 : PyObject_Size(reads);
    Py_DECREF(reads);
    Py_XDECREF(done);
    if (pending < 0) {
        return NULL;
    }
    if (!chain->asleep && pending <= state->pending) {
        Py_RETURN_NONE;
    }
    return PyObject_CallMethodObjArgs(self, state->method[chain->asleep ? WAKE : CROWDED], NULL);
}

/* Whether a read goes into the entry of the one before. */
static int
is_of_the_same(PyObject *read, PyObject *before)
{
    int same = 1;
    for (Py_ssize_t i = 0; i < 4 && same > 0; i++) {
        same = PyObject_RichCompareBool(PyTuple_GetItem(read, i), PyTuple_GetItem(before, i), Py_EQ);
    }
    return same;
}

/* The entry of some reads, of which `read` is the first. */
static PyObject *
entry_of(NativeState *state, PyObject *read, PyObject *values, PyObject *encode)
{
    PyObject *name = PyObject_CallFunctionObjArgs(state->dumps, PyTuple_GetItem(read, 3), NULL);
    PyObject *data = name == NULL ? NULL : PyObject_CallFunctionObjArgs(encode, values, NULL);
    PyObject *tail = NULL, *entry = NULL;
    if (data != NULL && !PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "values are encoded as bytes");
    } else if (data != NULL) {
        static const char before[] = ",\"name\":", between[] = ",\"values\":";
        Py_ssize_t size = PyBytes_Size(name), more = PyBytes_Size(data);
        tail = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(LENGTH(before) + LENGTH(between)) + size + more);
        if (tail != NULL) {
            char *at = put(PyBytes_AsString(tail), before, LENGTH(before));
            at = put(put(at, PyBytes_AsString(name), (size_t)size), between, LENGTH(between));
            put(at, PyBytes_AsString(data), (size_t)more);
            entry = PyTuple_Pack(4, PyTuple_GetItem(read, 0), PyTuple_GetItem(read, 1), PyTuple_GetItem(read, 2), tail);
        }
    }
    Py_XDECREF(name);
    Py_XDECREF(data);
    Py_XDECREF(tail);
    return entry;
}

/* The entries of a list of reads. */
static PyObject *
entries_of(NativeState *state, PyObject *list, PyObject *encode)
{
    PyObject *reads = PyList_GetSlice(list, 0, PY_SSIZE_T_MAX), *entries = PyList_New(0);
    Py_ssize_t at = 0, size = reads == NULL ? 0 : PyList_Size(reads);
    int right = reads != NULL && entries != NULL;
    while (right && at < size) {
        PyObject *first = PyList_GetItem(reads, at), *read = first, *values = PyList_New(0);
        int same = values == NULL ? -1 : 1;
        while (same > 0) {
            if (!PyTuple_Check(read) || PyTuple_Size(read) != 5) {
                PyErr_SetString(PyExc_TypeError, "a read is kind, lane, parent, name and value");
                same = -1;
            } else if ((same = read == first ? 1 : is_of_the_same(read, first)) > 0) {
                same = PyList_Append(values, PyTuple_GetItem(read, 4)) < 0 ? -1 : ++at < size;
                read = at < size ? PyList_GetItem(reads, at) : NULL;
            }
        }
        PyObject *entry = same < 0 ? NULL : entry_of(state, first, values, encode);
        Py_XDECREF(values);
        right = entry != NULL && PyList_Append(entries, entry) == 0;
        Py_XDECREF(entry);
    }
    Py_XDECREF(reads);
    if (!right) {
        Py_CLEAR(entries);
    }
    return entries;
}

PyDoc_STRVAR(grouped_doc, "grouped(reads, encode, /)\n--\n\nSee pure.grouped.");

static PyObject *
grouped(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "grouped() takes a list of reads, and what encodes their values");
        return NULL;
    }
    return entries_of(PyModule_GetState(module), args[0], args[1]);
}

/* The lines of a list of entries after `before`, in `data`; returns the end of the log with them. */
static PyObject *
lines_after(NativeState *state, Chain *chain, PyObject *before, void *list, PyObject **data)
{
    PyObject *entries = PyList_GetSlice(list, 0, PY_SSIZE_T_MAX), *end = Py_NewRef(before), *lines = PyList_New(0);
    Py_ssize_t size = entries == NULL ? 0 : PyList_Size(entries);
    int right = entries != NULL && lines != NULL;
    Entry entry = {.ts = 0};
    long long *const into[] = {&entry.lane, &entry.parent};
    for (Py_ssize_t i = 0; right && i < size; i++) {
        PyObject *given = PyList_GetItem(entries, i), *line = NULL, *after = NULL, *middle = NULL;
        if (!PyTuple_Check(given) || PyTuple_Size(given) != 4) {
            PyErr_SetString(PyExc_TypeError, "an entry is kind, lane, parent and tail");
        } else {
            PyObject *const objects[] = {PyTuple_GetItem(given, 1), PyTuple_GetItem(given, 2)};
            entry.tail = PyTuple_GetItem(given, 3);
            if (numbers(objects, into, 2) == 0 && (middle = middle_of(state, chain, PyTuple_GetItem(given, 0))) != NULL) {
                entry.middle = middle;
                after = next_end(state, end, &entry, &line);
            }
        }
        Py_XDECREF(middle);
        right = after != NULL && PyList_Append(lines, line) == 0;
        Py_XDECREF(line);
        if (after != NULL) {
            Py_DECREF(end);
            end = after;
        }
    }
    PyObject *nothing = right ? PyBytes_FromStringAndSize(NULL, 0) : NULL;
    *data = nothing == NULL ? NULL : PyObject_CallMethodObjArgs(nothing, state->method[JOIN], lines, NULL);
    Py_XDECREF(nothing);
    Py_XDECREF(entries);
    Py_XDECREF(lines);
    if (*data == NULL) {
        Py_CLEAR(end);
    }
    return end;
}

PyDoc_STRVAR(lines_doc, "_lines($self, end, entries, /)\n--\n\nSee pure.Chain._lines.");

static PyObject *
chain_lines(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Chain *chain = (Chain *)self;
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count != 2 || (names != NULL && PyTuple_Size(names)) || !PyList_Check(args[1]) || chain->middles == NULL) {
        PyErr_SetString(PyExc_TypeError, "_lines() takes an end and a list of entries");
        return NULL;
    }
    PyObject *data, *end = lines_after(state, chain, args[0], args[1], &data);
    if (end == NULL) {
        return NULL;
    }
    PyObject *result = PyTuple_Pack(2, data, end);
    Py_DECREF(data);
    Py_DECREF(end);
    return result;
}

/* Take the reads that wait, as a list. No code of Python runs meanwhile: no signal handler can lose one. What other threads add meanwhile
   waits. */
static PyObject *
taken_reads(NativeState *state, Chain *chain)
{
    PyObject *reads = Py_NewRef(chain->reads), *taken = PyList_New(0);
    Py_ssize_t left = taken == NULL ? -1 : PyObject_Size(reads);
    int right = left >= 0;
    while (right && left-- > 0) {
        PyObject *read = PyObject_CallMethodObjArgs(reads, state->method[POPLEFT], NULL);
        if (read == NULL && PyErr_ExceptionMatches(PyExc_IndexError)) { /* a finalizer has written them */
            PyErr_Clear();
            break;
        }
        right = read != NULL && PyList_Append(taken, read) == 0;
        Py_XDECREF(read);
    }
    Py_DECREF(reads);
    if (!right) {
        Py_CLEAR(taken);
    }
    return taken;
}

/* Have the journal take reads back that could not be written; the exception stays. */
static void
give_back(NativeState *state, Chain *chain, PyObject *taken)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)chain, state->method[GIVE_BACK], taken, NULL);
    if (done == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(done);
    PyErr_Restore(type, error, traceback);
}

/* Entries to be written together, and the end of the log with them once they are lines. */
typedef struct {
    PyObject *entries, *after;
} Batch;

static PyObject *
lines_of_batch(NativeState *state, Chain *chain, PyObject *end, void *what, PyObject **data)
{
    Batch *batch = what;
    Py_XDECREF(batch->after);
    batch->after = lines_after(state, chain, end, batch->entries, data);
    return Py_XNewRef(batch->after);
}

PyDoc_STRVAR(write_with_reads_doc, "_write_with_reads($self, *after)\n--\n\nSee pure.Chain._write_with_reads.");

static PyObject *
chain_write_with_reads(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Chain *chain = (Chain *)self;
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (names != NULL && PyTuple_Size(names)) {
        PyErr_SetString(PyExc_TypeError, "_write_with_reads() takes no named arguments");
        return NULL;
    }
    if (chain->reads == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a Chain needs _reads");
        return NULL;
    }
    if (!can_write(chain)) {
        return NULL;
    }
    PyObject *encode = PyObject_GetAttr(self, state->method[ENCODE_READ]);
    PyObject *taken = encode == NULL ? NULL : taken_reads(state, chain);
    if (taken == NULL) {
        Py_XDECREF(encode);
        return NULL;
    }
    Batch batch = {.entries = entries_of(state, taken, encode)};
    int right = batch.entries != NULL;
    for (Py_ssize_t i = 0; right && i < count; i++) {
        right = PyList_Append(batch.entries, args[i]) == 0;
    }
    PyObject *seq = NULL;
    if (right && PyList_Size(batch.entries)) {
        seq = write_made(state, chain, lines_of_batch, &batch);
    } else if (right && !(chain->stopped && settle(state, chain) < 0)) {
        seq = Py_NewRef(PyTuple_GetItem(chain->end, 0));
    }
    if (seq == NULL && (batch.after == NULL || (batch.after != chain->end && batch.after != chain->in_flight))) {
        give_back(state, chain, taken);
    }
    Py_DECREF(encode);
    Py_DECREF(taken);
    Py_XDECREF(batch.entries);
    Py_XDECREF(batch.after);
    return seq;
}

PyDoc_STRVAR(append_doc, "append($self, kind, lane, parent, tail, sync=False, /)\n--\n\nSee pure.Chain.append.");

static PyObject *
chain_append(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Chain *chain = (Chain *)self;
    NativeState *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (count < 4 || count > 5 || (names != NULL && PyTuple_Size(names))) {
        PyErr_SetString(PyExc_TypeError, "append() takes kind, lane, parent, tail and sync");
        return NULL;
    }
    PyObject *listed = count == 5 && PyDict_Check(args[4]) ? args[4] : NULL;
    int sync = count < 5 ? 0 : listed != NULL ? 1 : PyObject_IsTrue(args[4]);
    if (sync < 0) {
        return NULL;
    }
    if (chain->lock == NULL || chain->reads == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a Chain needs _lock and _reads");
        return NULL;
    }
    PyObject *lock = Py_NewRef(chain->lock); /* the one that is acquired is released, whatever becomes of the attribute */
    PyObject *done = PyObject_CallMethodObjArgs(lock, state->method[ENTER], NULL);
    if (done == NULL) {
        Py_DECREF(lock);
        return NULL;
    }
    Py_DECREF(done);
    PyObject *error, *value, *traceback, *seq = append_held(state, chain, args, sync);
    if (seq != NULL && listed != NULL && PyDict_SetItem(listed, seq, Py_None) < 0) {
        Py_CLEAR(seq);
    }
    PyErr_Fetch(&error, &value, &traceback);
    done = PyObject_CallMethodObjArgs(lock, state->method[EXIT], Py_None, Py_None, Py_None, NULL);
    Py_DECREF(lock);
    if (error != NULL) {
        PyErr_Clear();
        PyErr_Restore(error, value, traceback);
    }
    Py_XDECREF(done);
    if (done == NULL || seq == NULL) {
        Py_XDECREF(seq);
        return NULL;
    }
    done = sync || chain->always ? PyObject_CallMethodObjArgs(self, state->method[SYNC], seq, NULL)
        : chain->asleep && chain->lazy ? PyObject_CallMethodObjArgs(self, state->method[WAKE], NULL)
        : Py_NewRef(Py_None);
    if (done == NULL) {
        Py_DECREF(seq);
        return NULL;
    }
    Py_DECREF(done);
    return seq;
}

/* The lock by which who rests is roused; it is acquired when it is made. */
static PyThread_type_lock
roused_lock(Chain *chain)
{
    if (chain->roused == NULL) {
        if ((chain->roused = PyThread_allocate_lock()) == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        PyThread_acquire_lock(chain->roused, NOWAIT_LOCK);
    }
    return chain->roused;
}

PyDoc_STRVAR(rest_doc, "_rest($self, pause, longest, /)\n--\n\nSee pure.Chain._rest.");

static PyObject *
chain_rest(PyObject *self, PyTypeObject *Py_UNUSED(type), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Chain *chain = (Chain *)self;
    if (count != 2 || (names != NULL && PyTuple_Size(names))) {
        PyErr_SetString(PyExc_TypeError, "_rest() takes pause and longest");
        return NULL;
    }
    double pause = PyFloat_AsDouble(args[0]), longest = PyFloat_AsDouble(args[1]);
    PyThread_type_lock lock = roused_lock(chain);
    if (lock == NULL || PyErr_Occurred()) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    unsigned long before = atomic_load_explicit(&chain->written, memory_order_relaxed), now;
    for (double waited = pause;; waited += pause) {
        if (PyThread_acquire_lock_timed(lock, (PY_TIMEOUT_T)(pause * 1e6), 0) == PY_LOCK_ACQUIRED) {
            break;
        }
        now = atomic_load_explicit(&chain->written, memory_order_relaxed);
        if (now == before || waited >= longest) {
            break;
        }
        before = now;
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(rouse_doc, "_rouse($self, /)\n--\n\nSee pure.Chain._rouse.");

static PyObject *
chain_rouse(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyThread_type_lock lock = roused_lock((Chain *)self);
    if (lock == NULL) {
        return NULL;
    }
    PyThread_release_lock(lock);
    Py_RETURN_NONE;
}

static int
chain_traverse(PyObject *self, visitproc visit, void *arg)
{
    Chain *chain = (Chain *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(chain->fd);
    Py_VISIT(chain->end);
    Py_VISIT(chain->in_flight);
    Py_VISIT(chain->middles);
    Py_VISIT(chain->lock);
    Py_VISIT(chain->reads);
    return 0;
}

static int
chain_clear(PyObject *self)
{
    Chain *chain = (Chain *)self;
    Py_CLEAR(chain->fd);
    Py_CLEAR(chain->end);
    Py_CLEAR(chain->in_flight);
    Py_CLEAR(chain->middles);
    Py_CLEAR(chain->lock);
    Py_CLEAR(chain->reads);
    return 0;
}

static void
chain_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)chain_clear(self);
    if (((Chain *)self)->roused != NULL) {
        PyThread_free_lock(((Chain *)self)->roused);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef chain_members[] = {
    {"_fd", T_OBJECT_EX, offsetof(Chain, fd), 0, NULL},
    {"_end", T_OBJECT_EX, offsetof(Chain, end), 0, NULL},
    {"_in_flight", T_OBJECT_EX, offsetof(Chain, in_flight), 0, NULL},
    {"_middles", T_OBJECT_EX, offsetof(Chain, middles), 0, NULL},
    {"_lock", T_OBJECT_EX, offsetof(Chain, lock), 0, NULL},
    {"_reads", T_OBJECT_EX, offsetof(Chain, reads), 0, NULL},
    {"_stopped", T_BOOL, offsetof(Chain, stopped), 0, NULL},
    {"_always", T_BOOL, offsetof(Chain, always), 0, NULL},
    {"_lazy", T_BOOL, offsetof(Chain, lazy), 0, NULL},
    {"_asleep", T_BOOL, offsetof(Chain, asleep), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef chain_methods[] = {
    {"append", (PyCFunction)(void (*)(void))chain_append, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, append_doc},
    {"_put", (PyCFunction)(void (*)(void))chain_put, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, put_doc},
    {"_write", (PyCFunction)(void (*)(void))chain_write, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, write_doc},
    {"_lines", (PyCFunction)(void (*)(void))chain_lines, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, lines_doc},
    {"_write_with_reads", (PyCFunction)(void (*)(void))chain_write_with_reads, METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     write_with_reads_doc},
    {"read", (PyCFunction)(void (*)(void))chain_read, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, read_doc},
    {"_rest", (PyCFunction)(void (*)(void))chain_rest, METH_METHOD | METH_FASTCALL | METH_KEYWORDS, rest_doc},
    {"_rouse", chain_rouse, METH_NOARGS, rouse_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(chain_doc, "See pure.Chain.");

static PyType_Slot chain_slots[] = {
    {Py_tp_doc, (void *)chain_doc},
    {Py_tp_members, chain_members},
    {Py_tp_methods, chain_methods},
    {Py_tp_traverse, chain_traverse},
    {Py_tp_clear, chain_clear},
    {Py_tp_dealloc, chain_dealloc},
    {0, NULL},
};

static PyType_Spec chain_spec = {
    .name = "tracekit._native._compiled.Chain",
    .basicsize = sizeof(Chain),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = chain_slots,
};

static PyMethodDef functions[] = {
    {"as_it_is", (PyCFunction)(void (*)(void))as_it_is, METH_FASTCALL, as_it_is_doc},
    {"digest", (PyCFunction)(void (*)(void))digest, METH_FASTCALL, digest_doc},
    {"grouped", (PyCFunction)(void (*)(void))grouped, METH_FASTCALL, grouped_doc},
    {"elements", (PyCFunction)(void (*)(void))elements, METH_FASTCALL, elements_doc},
    {"line", (PyCFunction)(void (*)(void))line, METH_FASTCALL, line_doc},
    {"of_text", (PyCFunction)(void (*)(void))of_text, METH_FASTCALL, of_text_doc},
    {"sha256_hex", sha256_hex, METH_O, sha256_hex_doc},
    {"unknown", (PyCFunction)(void (*)(void))unknown, METH_FASTCALL, unknown_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_journal(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &chain_spec, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return added < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
