/* Values on their way into the log: which of them orjson writes faithfully as they are.
 *
 * Only exact types are looked at, so that no code of the program's own runs, and nothing changes meanwhile. */

#include "native.h"

#include <math.h>
#include <stdlib.h>

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

/* -- the same container more than once ----------------------------------------------------------------------------- */

/* The containers with more references than a single occurrence explains: one that occurs twice is among these. */
typedef struct {
    PyObject **nodes;
    size_t count, size;
} Candidates;

/* The array `items`, in which there is room for one more; NULL if there is no memory, and then it stays as it is. */
static void *
with_room(void *items, size_t count, size_t *size, size_t each)
{
    if (count < *size) {
        return items;
    }
    size_t more = *size ? *size * 2 : 64;
    void *larger = PyMem_Realloc(items, more * each);
    if (larger == NULL) {
        return PyErr_NoMemory();
    }
    *size = more;
    return larger;
}

static int
add_candidate(Candidates *found, PyObject *node)
{
    PyObject **nodes = with_room(found->nodes, found->count, &found->size, sizeof(PyObject *));
    if (nodes == NULL) {
        return -1;
    }
    found->nodes = nodes;
    found->nodes[found->count++] = node;
    return 0;
}

static int
by_address(const void *one, const void *other)
{
    const char *first = *(const char *const *)one, *second = *(const char *const *)other;
    return (first > second) - (first < second);
}

/* Whether one of them occurs twice; frees them. */
static int
has_twice(Candidates *found)
{
    int twice = 0;
    if (found->count > 1) {
        qsort(found->nodes, found->count, sizeof(PyObject *), by_address);
        for (size_t i = 1; !twice && i < found->count; i++) {
            twice = found->nodes[i] == found->nodes[i - 1];
        }
    }
    PyMem_Free(found->nodes);
    return twice;
}

/* -- whole values -------------------------------------------------------------------------------------------------- */

/* So many: a container that occurs very often is among them each time. */
#define MANY_CANDIDATES (1 << 20)

/* How one walk goes on: how many containers it may find on each level below the first, and has found; and which of them might
 * occur twice, if none may. */
typedef struct {
    Py_ssize_t levels;
    Py_ssize_t width;
    Py_ssize_t *found;
    int once;
    Candidates candidates;
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
        if (walk->once && Py_REFCNT(value) > 1) {
            if (walk->candidates.count > MANY_CANDIDATES) {
                return 0;
            }
            if (add_candidate(&walk->candidates, value) < 0) {
                return -1;
            }
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

PyDoc_STRVAR(decoded_doc, "decoded(variables, /)\n--\n\nSee pure.decoded.");

static PyObject *
decoded(PyObject *Py_UNUSED(module), PyObject *variables)
{
    if (!PyDict_Check(variables)) {
        PyErr_SetString(PyExc_TypeError, "decoded() takes a dictionary of bytes");
        return NULL;
    }
    PyObject *pairs = PyDict_Items(variables);
    Py_ssize_t size = pairs == NULL ? 0 : PyList_Size(pairs);
    for (Py_ssize_t i = 0; pairs != NULL && i < size; i++) {
        PyObject *pair = PyList_GetItem(pairs, i), *texts[2] = {NULL, NULL};
        for (int part = 0; part < 2; part++) {
            PyObject *bytes = PyTuple_GetItem(pair, part);
            if (!PyBytes_Check(bytes)) {
                PyErr_SetString(PyExc_TypeError, "decoded() takes a dictionary of bytes");
                break;
            }
            texts[part] = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(bytes), PyBytes_Size(bytes));
            if (texts[part] == NULL) {
                break;
            }
        }
        PyObject *made = texts[0] == NULL || texts[1] == NULL ? NULL : PyTuple_Pack(2, texts[0], texts[1]);
        Py_XDECREF(texts[0]);
        Py_XDECREF(texts[1]);
        if (made == NULL || PyList_SetItem(pairs, i, made) < 0) {
            Py_CLEAR(pairs);
        }
    }
    return pairs;
}

PyDoc_STRVAR(plain_doc, "plain(value, levels, width, once=False, /)\n--\n\nSee pure.plain.");

static PyObject *
plain(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *value;
    Plain walk = {.once = 0};
    if (!PyArg_ParseTuple(args, "Onn|p:plain", &value, &walk.levels, &walk.width, &walk.once)) {
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
    if (yes != 1) {
        PyMem_Free(walk.candidates.nodes);
        return yes < 0 ? NULL : PyBool_FromLong(0);
    }
    return PyBool_FromLong(!has_twice(&walk.candidates));
}

/* -- the short way ------------------------------------------------------------------------------------------------- */

/* What a look at a value says: AS_IT_IS or TAGS (a tuple or a float in it needs one) where it is for the short way. */
typedef enum { FAILED = -1, INVOLVED, AS_IT_IS, TAGS } Kind;

/* Nothing is allocated for the garbage collector here, so it does not run, and nobody changes what is iterated. */
static Kind
kind_of(PyObject *value, PyObject *seen, Py_ssize_t containers)
{
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || value == Py_None || PyBool_Check(value)) {
        return AS_IT_IS;
    }
    if (PyFloat_CheckExact(value)) {
        return isfinite(PyFloat_AsDouble(value)) ? AS_IT_IS : TAGS;
    }
    int is_dict = PyDict_CheckExact(value), is_list = PyList_CheckExact(value);
    if (!is_dict && !is_list && !PyTuple_CheckExact(value)) {
        return INVOLVED;
    }
    if (PyList_Append(seen, value) < 0) {
        return FAILED;
    }
    if (PyList_Size(seen) > containers) {
        return INVOLVED;
    }
    Kind whole = is_dict || is_list ? AS_IT_IS : TAGS, part = AS_IT_IS;
    if (is_dict) {
        PyObject *key, *item;
        Py_ssize_t position = 0;
        while (part > INVOLVED && PyDict_Next(value, &position, &key, &item)) {
            part = kind_of(item, seen, containers);
            whole = part == TAGS ? TAGS : whole;
        }
    } else {
        Py_ssize_t size = is_list ? PyList_Size(value) : PyTuple_Size(value);
        for (Py_ssize_t i = 0; part > INVOLVED && i < size; i++) {
            part = kind_of(is_list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i), seen, containers);
            whole = part == TAGS ? TAGS : whole;
        }
    }
    return part > INVOLVED ? whole : part;
}

static PyObject *tagged(PyObject *value, Py_ssize_t *left);

/* {"$t": name, "v": value}; it takes the reference to the value. */
static PyObject *
with_tag(const char *name, PyObject *value)
{
    return value == NULL ? NULL : Py_BuildValue("{sssN}", "$t", name, "v", value);
}

static PyObject *
tagged_mapping(PyObject *value, Py_ssize_t *left)
{
    PyObject *key, *item, *copy = PyDict_Copy(value);
    Py_ssize_t position = 0;
    while (copy != NULL && PyDict_Next(copy, &position, &key, &item)) {
        /* Only values of keys that are there change, which PyDict_Next allows; another key would run its own code. */
        PyObject *tree = PyUnicode_CheckExact(key) ? tagged(item, left) : NULL;
        if (tree == NULL || (tree != item && PyDict_SetItem(copy, key, tree) < 0)) {
            Py_CLEAR(copy);
        }
        Py_XDECREF(tree);
    }
    return copy;
}

static PyObject *
tagged_items(PyObject *value, Py_ssize_t *left)
{
    PyObject *copy = PySequence_List(value);
    for (Py_ssize_t i = 0; copy != NULL && i < PyList_Size(copy); i++) {
        PyObject *tree = tagged(PyList_GetItem(copy, i), left);
        if (tree == NULL || PyList_SetItem(copy, i, tree) < 0) { /* it takes the reference */
            Py_CLEAR(copy);
        }
    }
    return copy;
}

/* A copy as orjson writes it faithfully, looked at anew: to make it may run the garbage collector, and so anything. At most so many
 * containers are left. NULL without an exception: it is not for the short way. */
static PyObject *
tagged(PyObject *value, Py_ssize_t *left)
{
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || value == Py_None || PyBool_Check(value)) {
        return Py_NewRef(value);
    }
    if (PyFloat_CheckExact(value)) {
        return isfinite(PyFloat_AsDouble(value)) ? Py_NewRef(value) : with_tag("float", PyObject_Repr(value));
    }
    if (--*left < 0) {
        return NULL;
    }
    if (PyDict_CheckExact(value)) {
        return tagged_mapping(value, left);
    }
    if (PyList_CheckExact(value)) {
        return tagged_items(value, left);
    }
    return PyTuple_CheckExact(value) ? with_tag("tuple", tagged_items(value, left)) : NULL;
}

/* Whether a dictionary has a key that might be taken for a tag: 1, 0, or -1 with an exception. */
static int
has_dollar(PyObject *mapping)
{
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(mapping, &position, &key, &item)) {
        if (!PyUnicode_CheckExact(key)) { /* orjson has seen none */
            return 1;
        }
        Py_ssize_t at = PyUnicode_FindChar(key, '$', 0, PyUnicode_GetLength(key), 1);
        if (at != -1) {
            return at < 0 ? -1 : 1;
        }
    }
    return 0;
}

/* Whether orjson's bytes say what the value is: no key in it looks like a tag, and it is not nested too deep. 1, 0 or -1. */
static int
faithful(PyObject *data, PyObject *seen, Py_ssize_t levels)
{
    const char *bytes = PyBytes_AsString(data);
    Py_ssize_t size = PyBytes_Size(data), met = PyList_Size(seen);
    if (memchr(bytes, '$', (size_t)size) != NULL) { /* in a tag of ours, in a text, or in such a key */
        for (Py_ssize_t i = 0; i < met; i++) {
            PyObject *node = PyList_GetItem(seen, i);
            int found = PyDict_CheckExact(node) ? has_dollar(node) : 0;
            if (found) {
                return found < 0 ? -1 : 0;
            }
        }
    }
    if (met > levels / 2) {
        Py_ssize_t opened = 0;
        for (Py_ssize_t i = 0; i < size; i++) {
            opened += bytes[i] == '[' || bytes[i] == '{';
        }
        return opened <= levels;
    }
    return 1;
}

PyDoc_STRVAR(noted_doc, "noted(value, seen, /)\n--\n\nSee pure.noted.");

static PyObject *
noted(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "noted() takes a value and a list");
        return NULL;
    }
    NativeState *state = PyModule_GetState(module);
    PyObject *seen = args[1], *tree;
    Kind kind = kind_of(args[0], seen, state->containers);
    if (kind == AS_IT_IS) {
        tree = Py_NewRef(args[0]);
    } else {
        Py_ssize_t left = state->containers;
        tree = kind == TAGS ? tagged(args[0], &left) : NULL;
    }
    if (tree == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    PyObject *data = PyObject_CallFunctionObjArgs(state->dumps, tree, Py_None, state->in_order, NULL);
    Py_DECREF(tree);
    if (data == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            return NULL;
        }
        PyErr_Clear(); /* a key, a text or a number that JSON has no word for */
        return Py_NewRef(Py_None);
    }
    int yes = faithful(data, seen, state->levels);
    if (yes != 1) {
        Py_DECREF(data);
        return yes < 0 ? NULL : Py_NewRef(Py_None);
    }
    return data;
}

PyDoc_STRVAR(repeated_doc, "repeated(seen, /)\n--\n\nSee pure.repeated.");

static PyObject *
repeated(PyObject *Py_UNUSED(module), PyObject *seen)
{
    if (!PyList_CheckExact(seen)) {
        PyErr_SetString(PyExc_TypeError, "repeated() takes a list");
        return NULL;
    }
    Candidates found = {NULL, 0, 0};
    for (Py_ssize_t i = 0; i < PyList_Size(seen); i++) {
        PyObject *node = PyList_GetItem(seen, i);
        /* One reference is the list's, one that of the container around it. */
        if (Py_REFCNT(node) > 2 && !PyTuple_CheckExact(node) && add_candidate(&found, node) < 0) {
            PyMem_Free(found.nodes);
            return NULL;
        }
    }
    return PyBool_FromLong(has_twice(&found));
}

/* -- parts that are written apart ---------------------------------------------------------------------------------- */

/* The way to a place in a tree: its last step, and the ones before. */
typedef struct Way {
    const struct Way *before;
    PyObject *key; /* NULL: a place in a list */
    Py_ssize_t at;
} Way;

/* What is looked for, and was found. */
typedef struct {
    Py_ssize_t least, element;
    PyObject *found;
} Parts;

/* Append ((…, step), part). */
static int
add_part(Parts *parts, const Way *way, PyObject *part)
{
    Py_ssize_t length = 0;
    for (const Way *step = way; step != NULL; step = step->before) {
        length++;
    }
    PyObject *steps = PyTuple_New(length);
    for (const Way *step = way; steps != NULL && step != NULL; step = step->before) {
        PyObject *one = step->key != NULL ? Py_NewRef(step->key) : PyLong_FromSsize_t(step->at);
        if (one == NULL || PyTuple_SetItem(steps, --length, one) < 0) {
            Py_CLEAR(steps);
        }
    }
    PyObject *both = steps == NULL ? NULL : PyTuple_Pack(2, steps, part);
    int added = both == NULL ? -1 : PyList_Append(parts->found, both);
    Py_XDECREF(steps);
    Py_XDECREF(both);
    return added;
}

/* Whether a list has a dictionary or a text in it that is worth being referred to. */
static int
is_worth(PyObject *list, Py_ssize_t element)
{
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (PyDict_CheckExact(item) || (PyUnicode_CheckExact(item) && PyUnicode_GetLength(item) >= element)) {
            return 1;
        }
    }
    return 0;
}

static int parts_in(Parts *parts, PyObject *value, const Way *way);

static int
look_at_part(Parts *parts, PyObject *value, const Way *way)
{
    if (PyUnicode_CheckExact(value)) {
        return PyUnicode_GetLength(value) >= parts->least ? add_part(parts, way, value) : 0;
    }
    if (PyList_CheckExact(value) && parts->element && is_worth(value, parts->element)) {
        return add_part(parts, way, value);
    }
    if (!PyDict_CheckExact(value) && !PyList_CheckExact(value)) {
        return 0;
    }
    if (Py_EnterRecursiveCall(" while the parts of a value are looked for")) {
        return -1;
    }
    int done = parts_in(parts, value, way);
    Py_LeaveRecursiveCall();
    return done;
}

/* The value is held while it is looked at: what is found may run the garbage collector, and so anything. */
static int
parts_in(Parts *parts, PyObject *value, const Way *way)
{
    int done = 0;
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t position = 0, size = PyDict_Size(value);
        while (done == 0 && PyDict_Next(value, &position, &key, &item)) {
            Way step = {way, Py_NewRef(key), 0};
            Py_INCREF(item);
            done = look_at_part(parts, item, &step);
            Py_DECREF(item);
            Py_DECREF(key);
            if (done == 0 && PyDict_Size(value) != size) {
                PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
                done = -1;
            }
        }
        return done;
    }
    for (Py_ssize_t i = 0; done == 0 && i < PyList_Size(value); i++) {
        Way step = {way, NULL, i};
        PyObject *item = Py_NewRef(PyList_GetItem(value, i));
        done = look_at_part(parts, item, &step);
        Py_DECREF(item);
    }
    return done;
}

PyObject *
tracekit_parts(PyObject *value, Py_ssize_t least, Py_ssize_t element)
{
    Parts parts = {least, element, PyList_New(0)};
    if (parts.found != NULL && parts_in(&parts, value, NULL) < 0) {
        Py_CLEAR(parts.found);
    }
    return parts.found;
}

PyDoc_STRVAR(parts_doc, "parts(value, least, element, /)\n--\n\nSee pure.parts.");

static PyObject *
parts(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !(PyDict_CheckExact(args[0]) || PyList_CheckExact(args[0]))) {
        PyErr_SetString(PyExc_TypeError, "parts() takes a dictionary or a list, and two numbers");
        return NULL;
    }
    Py_ssize_t least = PyLong_AsSsize_t(args[1]), element = PyLong_AsSsize_t(args[2]);
    return PyErr_Occurred() ? NULL : tracekit_parts(args[0], least, element);
}

/* Whether containers are nested at most `left` deep. No code of Python runs meanwhile. */
static int
is_shallow(PyObject *value, Py_ssize_t left)
{
    PyObject *key, *item;
    Py_ssize_t position = 0;
    int right = 1;
    if (PyDict_CheckExact(value)) {
        right = left > 0;
        while (right && PyDict_Next(value, &position, &key, &item)) {
            right = is_shallow(item, left - 1);
        }
    } else if (PyList_CheckExact(value)) {
        right = left > 0;
        for (; right && position < PyList_Size(value); position++) {
            right = is_shallow(PyList_GetItem(value, position), left - 1);
        }
    }
    return right;
}

PyDoc_STRVAR(shallow_doc, "shallow(value, levels, /)\n--\n\nSee pure.shallow.");

static PyObject *
shallow(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "shallow() takes a value and a number");
        return NULL;
    }
    Py_ssize_t levels = PyLong_AsSsize_t(args[1]);
    if (levels == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(is_shallow(args[0], levels));
}

int
tracekit_may_be_tagged(const char *json, size_t size)
{
    const char *at = json, *end = json + size;
    while (at < end && (at = memchr(at, '$', (size_t)(end - at))) != NULL) {
        if (at > json && at[-1] == '"') {
            return 1;
        }
        at++;
    }
    return 0;
}

/* Whether orjson writes a value as this content, which is short and has few levels and no text that may be a tag. */
static int
is_its_json(NativeState *state, PyObject *content, PyObject *value, Py_ssize_t levels, Py_ssize_t longest)
{
    const char *text = PyBytes_AsString(content);
    Py_ssize_t size = PyBytes_Size(content);
    if (size >= longest || (size > 1 && strchr(" \t\n\r", text[1]) != NULL && *text != '"')
        || tracekit_may_be_tagged(text, (size_t)size) || !is_shallow(value, levels)) {
        return 0; /* one that is indented need not be written to be told apart */
    }
    PyObject *data = PyObject_CallFunctionObjArgs(state->dumps, value, NULL);
    int same = data == NULL ? -1 : PyBytes_Size(data) == size && memcmp(PyBytes_AsString(data), text, (size_t)size) == 0;
    Py_XDECREF(data);
    return same;
}

PyDoc_STRVAR(read_json_doc, "read_json(content, otherwise, levels, longest, /)\n--\n\nSee pure.read_json.");

static PyObject *
read_json(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "read_json() takes bytes, an object and two numbers");
        return NULL;
    }
    NativeState *state = PyModule_GetState(module);
    PyObject *content = args[0], *value = NULL;
    Py_ssize_t levels = PyLong_AsSsize_t(args[2]), longest = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    const char *text = PyBytes_AsString(content);
    size_t size = (size_t)PyBytes_Size(content);
    char first = size ? *text : 0;
    int same = 0;
    if (first == '{' || first == '[' || first == '"') {
        if (PyBytes_Size(content) < longest && !tracekit_may_be_tagged(text, size)) {
            value = tracekit_exact(text, size, levels);
            same = value != NULL;
        }
        if (value == NULL && !PyErr_Occurred()) {
            value = PyObject_CallFunctionObjArgs(state->loads, content, NULL);
            if (value == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) {
                PyErr_Clear();
            } else if (value != NULL) {
                same = is_its_json(state, content, value, levels, longest);
            }
        }
    }
    int failed = same < 0 || PyErr_Occurred() != NULL;
    PyObject *result = failed ? NULL : PyTuple_Pack(2, value == NULL ? args[1] : value, same ? content : Py_None);
    Py_XDECREF(value);
    return result;
}

/* How a copy of decoded JSON is made. */
typedef struct {
    NativeState *state;
    long most;
    PyObject *other;
} Copying;

static PyObject *
copied_otherwise(Copying *how, PyObject *tree, long depth)
{
    PyObject *number = PyLong_FromLong(depth);
    PyObject *value = number == NULL ? NULL : PyObject_CallFunctionObjArgs(how->other, tree, number, NULL);
    Py_XDECREF(number);
    return value;
}

static PyObject *copied_value(Copying *how, PyObject *tree, long depth);

/* What is called may do anything: the items are held meanwhile. */
static PyObject *
copied_mapping(Copying *how, PyObject *tree, long depth)
{
    PyObject *key, *item, *copy = PyDict_New();
    Py_ssize_t position = 0, size = PyDict_Size(tree);
    int tagged = copy == NULL ? -1 : PyDict_Contains(tree, how->state->method[TAG]);
    int right = tagged == 0;
    while (right && PyDict_Next(tree, &position, &key, &item)) {
        if (!PyUnicode_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "a key is a text");
            right = 0;
            break;
        }
        if (PyUnicode_GetLength(key) && PyUnicode_ReadChar(key, 0) == '$') {
            tagged = 1;
            break;
        }
        Py_INCREF(key);
        Py_INCREF(item);
        PyObject *value = copied_value(how, item, depth + 1);
        right = value != NULL && PyDict_SetItem(copy, key, value) == 0;
        Py_XDECREF(value);
        Py_DECREF(item);
        Py_DECREF(key);
        if (right && PyDict_Size(tree) != size) {
            PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
            right = 0;
        }
    }
    if (!right || tagged) {
        Py_CLEAR(copy);
    }
    return tagged > 0 ? copied_otherwise(how, tree, depth) : copy;
}

static PyObject *
copied_items(Copying *how, PyObject *tree, long depth)
{
    PyObject *copy = PyList_New(0);
    for (Py_ssize_t i = 0; copy != NULL && i < PyList_Size(tree); i++) {
        PyObject *item = Py_NewRef(PyList_GetItem(tree, i));
        PyObject *value = copied_value(how, item, depth + 1);
        Py_DECREF(item);
        if (value == NULL || PyList_Append(copy, value) < 0) {
            Py_CLEAR(copy);
        }
        Py_XDECREF(value);
    }
    return copy;
}

static PyObject *
copied_value(Copying *how, PyObject *tree, long depth)
{
    int is_dict = PyDict_CheckExact(tree);
    if (depth <= how->most && (is_dict || PyList_CheckExact(tree))) {
        if (Py_EnterRecursiveCall(" while a recorded value is copied")) {
            return NULL;
        }
        PyObject *value = (is_dict ? copied_mapping : copied_items)(how, tree, depth);
        Py_LeaveRecursiveCall();
        return value;
    }
    if (depth <= how->most && (PyUnicode_CheckExact(tree) || PyLong_CheckExact(tree) || PyFloat_CheckExact(tree)
                               || tree == Py_None || PyBool_Check(tree))) {
        return Py_NewRef(tree);
    }
    return copied_otherwise(how, tree, depth);
}

PyDoc_STRVAR(copied_doc, "copied(tree, depth, most, other, /)\n--\n\nSee pure.copied.");

static PyObject *
copied(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        return PyErr_Format(PyExc_TypeError, "copied() takes 4 arguments, not %zd", count);
    }
    long depth = PyLong_AsLong(args[1]);
    Copying how = {PyModule_GetState(module), PyLong_AsLong(args[2]), args[3]};
    return PyErr_Occurred() ? NULL : copied_value(&how, args[0], depth);
}

/* A value that is still to be looked at. Nothing in it is owned: the tree is nobody else's. */
typedef struct {
    PyObject *container, *key, *node; /* key: NULL for a place in a list */
    Py_ssize_t at;
    long depth;
} Pending;

/* What is to be looked at, the last one first. */
typedef struct {
    Pending *items;
    size_t count, size;
} Stack;

static int
push(Stack *stack, Pending item)
{
    Pending *items = with_room(stack->items, stack->count, &stack->size, sizeof(Pending));
    if (items == NULL) {
        return -1;
    }
    stack->items = items;
    stack->items[stack->count++] = item;
    return 0;
}

static int
add_reference(PyObject *found, const Pending *one)
{
    PyObject *both = one->key != NULL ? Py_BuildValue("OOOl", one->container, one->key, one->node, one->depth)
        : Py_BuildValue("OnOl", one->container, one->at, one->node, one->depth);
    int added = both == NULL ? -1 : PyList_Append(found, both);
    Py_XDECREF(both);
    return added;
}

/* Look at one value: add what it counts to the size, what is in it to the stack, and a reference to those found. */
static int
look_at_node(NativeState *state, const Pending *one, Stack *stack, PyObject *found, Py_ssize_t *size, long *deepest)
{
    PyObject *node = one->node;
    Pending below = {node, NULL, NULL, 0, one->depth + 1};
    if (PyUnicode_Check(node)) {
        *size += PyUnicode_GetLength(node);
        return 0;
    }
    int is_dict = PyDict_Check(node);
    if (!is_dict && !PyList_Check(node)) {
        return 0;
    }
    int refers = is_dict ? PyDict_Contains(node, state->method[REFERENCE]) : 0;
    if (is_dict && !refers) {
        refers = PyDict_Contains(node, state->method[EXTENSION]);
    }
    if (refers) {
        return refers < 0 ? -1 : add_reference(found, one);
    }
    *deepest = below.depth > *deepest ? below.depth : *deepest;
    Py_ssize_t position = 0;
    while (is_dict && PyDict_Next(node, &position, &below.key, &below.node)) {
        Py_ssize_t length = PyObject_Size(below.key);
        if (length < 0 || push(stack, below) < 0) {
            return -1;
        }
        *size += length;
    }
    for (; !is_dict && below.at < PyList_Size(node); below.at++) {
        below.node = PyList_GetItem(node, below.at);
        if (push(stack, below) < 0) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(survey_doc, "survey(container, key, depth, each, /)\n--\n\nSee pure.survey.");

static PyObject *
survey(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        return PyErr_Format(PyExc_TypeError, "survey() takes 4 arguments, not %zd", count);
    }
    long deepest = 0, depth = PyLong_AsLong(args[2]);
    Py_ssize_t size = 0, each = PyLong_AsSsize_t(args[3]);
    PyObject *root = PyErr_Occurred() ? NULL : PyObject_GetItem(args[0], args[1]);
    PyObject *found = root == NULL ? NULL : PyList_New(0);
    Stack stack = {NULL, 0, 0};
    int done = found == NULL ? -1 : push(&stack, (Pending){args[0], args[1], root, 0, depth});
    while (done == 0 && stack.count) {
        const Pending one = stack.items[--stack.count];
        size += each;
        done = look_at_node(PyModule_GetState(module), &one, &stack, found, &size, &deepest);
    }
    PyMem_Free(stack.items);
    Py_XDECREF(root);
    PyObject *result = done < 0 ? NULL : Py_BuildValue("nlO", size, deepest, found);
    Py_XDECREF(found);
    return result;
}

/* What is done with a header that has a name. */
typedef int Take(PyObject *found, PyObject *name, PyObject *value);

/* The name of a header as it is used. A new reference. */
static PyObject *
name_of(PyObject *names, PyObject *raw)
{
    PyObject *name = PyDict_Check(names) ? PyDict_GetItemWithError(names, raw) : NULL;
    if (name != NULL) { /* which takes a third of the time of a look-up in a subclass of dict */
        return Py_NewRef(name);
    }
    return PyErr_Occurred() ? NULL : PyObject_GetItem(names, raw);
}

/* An item of a header. A new reference. */
static PyObject *
item_of(PyObject *header, int is_tuple, Py_ssize_t index)
{
    return is_tuple ? Py_NewRef(PyTuple_GetItem(header, index)) : PySequence_GetItem(header, index);
}

/* Take the name and the value, the last item, of each header that `names` has a name for. */
static PyObject *
take_headers(PyObject *headers, PyObject *names, Take *take, PyObject *found)
{
    PyObject *all = found == NULL ? NULL : PyObject_GetIter(headers), *header;
    int right = all != NULL;
    while (right && (header = PyIter_Next(all)) != NULL) {
        int is_tuple = PyTuple_Check(header), wanted = -1;
        Py_ssize_t size = is_tuple ? PyTuple_Size(header) : PySequence_Size(header);
        if (size == 0 || size == 1) {
            PyErr_SetString(PyExc_ValueError, "a header has a name and a value");
        }
        PyObject *raw = size < 2 ? NULL : item_of(header, is_tuple, 0);
        PyObject *name = raw == NULL ? NULL : name_of(names, raw), *value = NULL;
        if (name != NULL) {
            wanted = PyObject_IsTrue(name);
        }
        if (wanted > 0) { /* of most headers the value is not looked at */
            value = item_of(header, is_tuple, size - 1);
            wanted = value == NULL ? -1 : 1;
        }
        right = wanted == 0 || (wanted > 0 && take(found, name, value) == 0);
        Py_DECREF(header);
        Py_XDECREF(raw);
        Py_XDECREF(value);
        Py_XDECREF(name);
    }
    Py_XDECREF(all);
    if (PyErr_Occurred()) {
        Py_CLEAR(found);
    }
    return found;
}

static int
take_pair(PyObject *found, PyObject *name, PyObject *value)
{
    PyObject *both = PyTuple_Pack(2, name, value);
    int done = both == NULL ? -1 : PyList_Append(found, both);
    Py_XDECREF(both);
    return done;
}

PyDoc_STRVAR(picked_doc, "picked(headers, names, /)\n--\n\nSee pure.picked.");

static PyObject *
picked(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "picked() takes 2 arguments, not %zd", count);
    }
    return take_headers(args[0], args[1], take_pair, PyList_New(0));
}

static int
take_text(PyObject *found, PyObject *name, PyObject *value)
{
    if (!PyBytes_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "the value of a header is bytes");
        return -1;
    }
    PyObject *text = PyUnicode_DecodeLatin1(PyBytes_AsString(value), PyBytes_Size(value), NULL);
    PyObject *before = text == NULL ? NULL : PyDict_GetItemWithError(found, name);
    int done = -1;
    if (before != NULL && PyList_Check(before)) {
        done = PyList_Append(before, text);
    } else if (before != NULL) {
        PyObject *both = Py_BuildValue("[OO]", before, text);
        done = both == NULL ? -1 : PyDict_SetItem(found, name, both);
        Py_XDECREF(both);
    } else if (text != NULL && !PyErr_Occurred()) {
        done = PyDict_SetItem(found, name, text);
    }
    Py_XDECREF(text);
    return done;
}

PyDoc_STRVAR(collected_doc, "collected(headers, names, /)\n--\n\nSee pure.collected.");

static PyObject *
collected(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        return PyErr_Format(PyExc_TypeError, "collected() takes 2 arguments, not %zd", count);
    }
    return take_headers(args[0], args[1], take_text, PyDict_New());
}

PyDoc_STRVAR(spaced_doc, "spaced(content, data, /)\n--\n\nSee pure.spaced.");

/* Whether the number whose point is at ``at`` may be written in another way by Python. */
static int
is_other(const char *begin, const char *at, const char *end)
{
    Py_ssize_t digits = 0;
    for (const char *digit = at; digit > begin && digit[-1] >= '0' && digit[-1] <= '9'; digit--) {
        digits++;
    }
    return digits >= 16 || (at > begin && at[-1] == '0' && end - at > 4 && memcmp(at + 1, "0000", 4) == 0);
}

static PyObject *
spaced(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "spaced() takes bytes twice");
        return NULL;
    }
    const char *to = PyBytes_AsString(args[0]), *to_end = to + PyBytes_Size(args[0]);
    const char *begin = PyBytes_AsString(args[1]), *at = begin, *end = begin + PyBytes_Size(args[1]);
    if (to_end - to <= end - at) {
        Py_RETURN_FALSE;
    }
    while (at < end) {
        const char *from = at, one = *at++;
        if (one == '"') {
            int escaped;
            do {
                const char *quote = memchr(at, '"', (size_t)(end - at));
                if (quote == NULL) {
                    Py_RETURN_FALSE;
                }
                escaped = 0;
                for (const char *before = quote - 1; before > from && *before == '\\'; before--) {
                    escaped = !escaped;
                }
                at = quote + 1;
            } while (escaped);
        }
        if (to_end - to < at - from || memcmp(to, from, (size_t)(at - from)) != 0) {
            Py_RETURN_FALSE;
        }
        to += at - from;
        if (one == ',' || one == ':') {
            if (to == to_end || *to++ != ' ') {
                Py_RETURN_FALSE;
            }
        }
        else if ((one == '.' && is_other(begin, from, end)) ||
                 ((one == 'e' || one == 'E') && from > begin && from[-1] >= '0' && from[-1] <= '9')) {
            Py_RETURN_FALSE;
        }
    }
    return PyBool_FromLong(to == to_end);
}

static PyMethodDef functions[] = {
    {"noted", (PyCFunction)(void (*)(void))noted, METH_FASTCALL, noted_doc},
    {"parts", (PyCFunction)(void (*)(void))parts, METH_FASTCALL, parts_doc},
    {"collected", (PyCFunction)(void (*)(void))collected, METH_FASTCALL, collected_doc},
    {"decoded", decoded, METH_O, decoded_doc},
    {"picked", (PyCFunction)(void (*)(void))picked, METH_FASTCALL, picked_doc},
    {"plain", plain, METH_VARARGS, plain_doc},
    {"read_json", (PyCFunction)(void (*)(void))read_json, METH_FASTCALL, read_json_doc},
    {"copied", (PyCFunction)(void (*)(void))copied, METH_FASTCALL, copied_doc},
    {"repeated", repeated, METH_O, repeated_doc},
    {"survey", (PyCFunction)(void (*)(void))survey, METH_FASTCALL, survey_doc},
    {"shallow", (PyCFunction)(void (*)(void))shallow, METH_FASTCALL, shallow_doc},
    {"spaced", (PyCFunction)(void (*)(void))spaced, METH_FASTCALL, spaced_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_values(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
