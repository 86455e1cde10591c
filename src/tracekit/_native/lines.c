/* Verify the lines of a trace and read its entries into columns, without a Python object per entry.
 *
 * The file is not trusted. At a line that a journal would not have written like this, the functions stop and leave it to the caller. */

#include "native.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* The end of each line: the key, the hash, the closing brace and the newline. */
static const char KEY[] = ",\"hash\":\"";
static const char CLOSE[] = "\"}\n";
#define LENGTH(text) (sizeof(text) - 1)
#define TAIL (LENGTH(KEY) + TRACEKIT_HASH + LENGTH(CLOSE))

/* The deepest nesting of lists and objects that is accepted. */
#define LEVELS 1000
/* How many entry types and keys a caller may name. */
#define MOST_TYPES 128
#define MOST_KEYS 128
/* Longer numbers are left to the caller. */
#define LONGEST_NUMBER 64
#define DIGITS 18

/* What the entries of a type must have: a step; or values and a name, without meta. */
enum { NEEDS_STEP = 1, NEEDS_VALUES = 2 };
/* Marks of an entry, beside the bits of the keys that the caller names. */
enum { REFERS = 64, OPAQUE = 128, ANYTHING = 255 };
/* The top-level keys of an entry that are read. */
enum { NO_FIELD, V, SEQ, RUN_ID, TYPE, TS_NS, LANE, PARENT, STEP, META, NAME, VALUES };

typedef struct {
    const char *text;
    Py_ssize_t size;
    int about; /* for a type what it needs, for a key its bit */
} Name;

typedef struct {
    Name types[MOST_TYPES], keys[MOST_KEYS];
    int type_count, key_count;
    const char *run_id;
    Py_ssize_t run_id_size;
    size_t longest;
    int depth;
} Expected;

/* What is read of one entry. */
typedef struct {
    long long seq, ts, lane, parent, step;
    unsigned char code, marks;
} Facts;

/* -- JSON ---------------------------------------------------------------------------------------------------------------
 *
 * Each function takes the position at which something begins and returns the position behind it, or NULL if it is anything unusual. The
 * line must end in a newline: no function accepts a control character, so none reads beyond it. */

static int
continues(const unsigned char *at, int count)
{
    for (; count; count--, at++) {
        if ((*at & 0xc0) != 0x80) {
            return 0;
        }
    }
    return 1;
}

/* One non-ASCII character in UTF-8. */
static const unsigned char *
wide_character(const unsigned char *at)
{
    unsigned char first = at[0];
    if (first >= 0xc2 && first <= 0xdf) {
        return continues(at + 1, 1) ? at + 2 : NULL;
    }
    if (first >= 0xe0 && first <= 0xef) {
        if (!continues(at + 1, 2) || (first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f)) {
            return NULL; /* an overlong encoding, or a surrogate */
        }
        return at + 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if (!continues(at + 1, 3) || (first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f)) {
            return NULL;
        }
        return at + 4;
    }
    return NULL;
}

/* An escape sequence, from behind the backslash. */
static const unsigned char *
escaped_character(const unsigned char *at)
{
    if (*at == 'u') {
        for (int i = 1; i < 5; i++) {
            unsigned char digit = at[i] | 0x20;
            if (!((at[i] >= '0' && at[i] <= '9') || (digit >= 'a' && digit <= 'f'))) {
                return NULL;
            }
        }
        /* Surrogates are left to the caller. */
        return (at[1] | 0x20) == 'd' && at[2] >= '8' ? NULL : at + 5;
    }
    return *at >= ' ' && strchr("\"\\/bfnrt", *at) != NULL ? at + 1 : NULL;
}

/* A string, from behind its first quote. Sets `escaped` to whether it has a backslash in it. */
static const unsigned char *
string(const unsigned char *at, const unsigned char *end, int *escaped)
{
    *escaped = 0;
    for (;;) {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
        while (end - at >= 16) {
            __m128i text = _mm_loadu_si128((const __m128i *)at);
            /* The comparison is signed: non-ASCII bytes are less than a space, too. */
            __m128i found = _mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, backslash)), _mm_cmplt_epi8(text, space)
            );
            int where = _mm_movemask_epi8(found);
            if (where) {
                at += __builtin_ctz((unsigned int)where);
                break;
            }
            at += 16;
        }
#endif
        unsigned char character = *at;
        if (character == '"') {
            return at + 1;
        }
        if (character == '\\') {
            *escaped = 1;
            at = escaped_character(at + 1);
        } else if (character >= 0x80) {
            do {
                at = wide_character(at);
            } while (at != NULL && *at >= 0x80);
        } else if (character < ' ') {
            return NULL;
        } else {
            at++;
        }
        if (at == NULL) {
            return NULL;
        }
    }
}

static int
is_digit(unsigned char character)
{
    return character >= '0' && character <= '9';
}

static const unsigned char *
digits(const unsigned char *at)
{
    if (!is_digit(*at)) {
        return NULL;
    }
    while (is_digit(*at)) {
        at++;
    }
    return at;
}

static const unsigned char *
number(const unsigned char *at)
{
    const unsigned char *begin = at;
    at += *at == '-';
    at = *at == '0' ? at + 1 : digits(at);
    if (at != NULL && *at == '.') {
        at = digits(at + 1);
    }
    if (at != NULL && (*at | 0x20) == 'e') {
        const unsigned char *exponent = at + 1 + (at[1] == '-' || at[1] == '+');
        at = digits(exponent);
        if (at != NULL && at - exponent > 2) { /* may exceed the range of a double */
            return NULL;
        }
    }
    return at != NULL && at - begin <= LONGEST_NUMBER ? at : NULL;
}

static const unsigned char *
word(const unsigned char *at, const unsigned char *end, const char *text, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, text, size) == 0 ? at + size : NULL;
}

/* Any value but a list or an object. */
static const unsigned char *
scalar(const unsigned char *at, const unsigned char *end)
{
    int escaped;
    switch (*at) {
    case '"':
        return string(at + 1, end, &escaped);
    case 't':
        return word(at, end, "true", 4);
    case 'f':
        return word(at, end, "false", 5);
    case 'n':
        return word(at, end, "null", 4);
    default:
        return number(at);
    }
}

/* -- an entry ----------------------------------------------------------------------------------------------------------- */

static int
is_text(const unsigned char *text, size_t size, const char *other, size_t other_size)
{
    return size == other_size && memcmp(text, other, size) == 0;
}

static int
field_of(const unsigned char *key, size_t size)
{
    static const Name fields[] = {
        {"v", 1, V}, {"seq", 3, SEQ}, {"run_id", 6, RUN_ID}, {"type", 4, TYPE}, {"ts_ns", 5, TS_NS}, {"lane", 4, LANE},
        {"parent", 6, PARENT}, {"step", 4, STEP}, {"meta", 4, META}, {"name", 4, NAME},
        {"values", 6, VALUES},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        if (is_text(key, size, fields[i].text, (size_t)fields[i].size)) {
            return fields[i].about;
        }
    }
    return NO_FIELD;
}

/* A number of at least 0; -1 for anything else, and for a number larger than any in a trace. */
static long long
natural(const unsigned char *at, const unsigned char *end)
{
    long long value = 0;
    if (end - at > DIGITS && !(end - at == DIGITS + 1 && *at < '9')) {
        return -1;
    }
    for (; at < end; at++) {
        if (!is_digit(*at)) {
            return -1;
        }
        value = value * 10 + (*at - '0');
    }
    return value;
}

/* Take the value of a top-level key; 0 if it is not the expected value. */
static int
take_field(const Expected *expected, Facts *entry, int field, const unsigned char *at, const unsigned char *end)
{
    if (field == RUN_ID || field == TYPE) {
        size_t size = (size_t)(end - at) - 2;
        if (*at != '"') {
            return 0;
        }
        if (field == RUN_ID) {
            return is_text(at + 1, size, expected->run_id, (size_t)expected->run_id_size);
        }
        for (int i = 0; i < expected->type_count; i++) {
            if (is_text(at + 1, size, expected->types[i].text, (size_t)expected->types[i].size)) {
                entry->code = (unsigned char)(i + 1);
                break;
            }
        }
        return 1;
    }
    long long value = natural(at, end);
    switch (field) {
    case V:
        return value == 1;
    case SEQ:
        return value == entry->seq;
    case TS_NS:
        if (value < entry->ts) {
            return 0;
        }
        entry->ts = value;
        return 1;
    case LANE:
        entry->lane = value;
        return value >= 0 && value <= UINT32_MAX;
    case PARENT:
        entry->parent = value;
        return value > 0 && value < entry->seq;
    default:
        entry->step = value;
        return value > 0 && value < entry->seq;
    }
}

/* The marks that a nested key sets: keys in `meta` that the caller has named, and references to interned values. */
static int
marks_of(const Expected *expected, const unsigned char *key, size_t size, int in_meta)
{
    if (key[0] == '$') {
        return size == 2 && key[1] == 't' ? 0 : REFERS;
    }
    int marks = 0;
    for (int i = 0; in_meta && i < expected->key_count; i++) {
        if (is_text(key, size, expected->keys[i].text, (size_t)expected->keys[i].size)) {
            marks |= expected->keys[i].about;
        }
    }
    return marks;
}

/* Whether the line up to `end`, a newline, is an entry as a journal writes it. `entry` holds the expected values and receives those
 * that are read. */
static int
is_entry(const Expected *expected, const unsigned char *at, const unsigned char *end, Facts *entry)
{
    unsigned char in_object[LEVELS];
    int depth = 1, field = NO_FIELD, tag = 0;
    unsigned int seen = 0; /* fields; a name that is not a string does not count */
    if (*at++ != '{') {
        return 0;
    }
    in_object[0] = 1;
    for (;;) {
        if (in_object[depth - 1]) {
            const unsigned char *key = at + 1;
            int escaped;
            at = *at == '"' ? string(key, end, &escaped) : NULL;
            if (at == NULL || *at != ':') {
                return 0;
            }
            size_t size = (size_t)(at - key) - 1;
            at++;
            tag = 0;
            if (depth == 1) {
                field = field_of(key, size);
                if (escaped || (field != NO_FIELD && seen & 1u << field) || (field == META && *at != '{')) {
                    return 0;
                }
                if (field != NAME || *at == '"') {
                    seen |= 1u << field;
                }
            } else if (escaped) {
                entry->marks = ANYTHING; /* it may stand for any key */
            } else {
                entry->marks |= (unsigned char)marks_of(expected, key, size, field == META);
                tag = is_text(key, size, "$t", 2);
                if (depth == 2 && field == META && *at != '{' && is_text(key, size, "info", 4)) {
                    entry->marks = ANYTHING;
                }
            }
        }
        if (*at == '{' || *at == '[') {
            if (depth == 1 && field != NO_FIELD && field < META) {
                return 0;
            }
            if (depth >= expected->depth) {
                return 0;
            }
            in_object[depth++] = *at == '{';
            if (tag) {
                entry->marks |= OPAQUE;
            }
            tag = 0;
            at++;
            if (*at != ']' && *at != '}') {
                continue;
            }
        } else {
            const unsigned char *value = at;
            at = scalar(at, end);
            if (at == NULL || (depth == 1 && field != NO_FIELD && field < META && !take_field(expected, entry, field, value, at))) {
                return 0;
            }
            if (tag && (is_text(value, (size_t)(at - value), "\"opaque\"", 8) || memchr(value, '\\', (size_t)(at - value)) != NULL)) {
                entry->marks |= OPAQUE;
            }
            tag = 0;
        }
        /* Behind a value. */
        while (*at != ',') {
            if (*at != (in_object[depth - 1] ? '}' : ']')) {
                return 0;
            }
            at++;
            if (--depth == 0) {
                break;
            }
        }
        if (depth == 0) {
            break;
        }
        at++;
    }
    const unsigned int all = 1u << V | 1u << SEQ | 1u << RUN_ID | 1u << TYPE | 1u << TS_NS | 1u << LANE;
    if (at != end || (seen & all) != all) {
        return 0;
    }
    int needs = entry->code ? expected->types[entry->code - 1].about : 0;
    if ((needs & NEEDS_STEP && !entry->step) || (needs & NEEDS_VALUES && ((~seen & (1u << VALUES | 1u << NAME)) || seen & 1u << META))) {
        entry->code = 0;
    }
    return 1;
}

/* -- a block ------------------------------------------------------------------------------------------------------------ */

enum { ENDS, CODES, MARKS, LANES, PARENTS, STEPS, COLUMNS };
static const size_t WIDTH[COLUMNS] = {8, 1, 1, 4, 4, 4};

typedef struct {
    char *column[COLUMNS];
    size_t count, room;
} Columns;

static void
free_columns(Columns *columns)
{
    for (int i = 0; i < COLUMNS; i++) {
        PyMem_Free(columns->column[i]);
    }
}

static int
add_row(Columns *columns, unsigned long long end, const Facts *entry)
{
    if (columns->count == columns->room) {
        size_t room = columns->room ? 2 * columns->room : 256;
        for (int i = 0; i < COLUMNS; i++) {
            char *larger = PyMem_Realloc(columns->column[i], room * WIDTH[i]);
            if (larger == NULL) {
                PyErr_NoMemory();
                return -1;
            }
            columns->column[i] = larger;
        }
        columns->room = room;
    }
    size_t row = columns->count++;
    const uint64_t ends = end;
    const uint32_t others[] = {(uint32_t)entry->lane, (uint32_t)entry->parent, (uint32_t)entry->step};
    memcpy(columns->column[ENDS] + row * sizeof(ends), &ends, sizeof(ends));
    columns->column[CODES][row] = (char)entry->code;
    columns->column[MARKS][row] = (char)entry->marks;
    for (int i = 0; i < 3; i++) {
        memcpy(columns->column[LANES + i] + row * sizeof(*others), &others[i], sizeof(*others));
    }
    return 0;
}

/* Point at the content of a bytes object. */
static int
read_bytes(PyObject *bytes, const char **text, Py_ssize_t *size)
{
    *text = PyBytes_AsString(bytes);
    *size = PyBytes_Size(bytes);
    return *text == NULL || *size < 0 ? -1 : 0;
}

/* Read a tuple of (bytes, int) pairs. */
static int
read_names(PyObject *tuple, Name *into, int most, int *count)
{
    Py_ssize_t size = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    if (size < 0 || size > most) {
        PyErr_Format(PyExc_ValueError, "names are a tuple of at most %d", most);
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i), *name;
        if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "Si;a name is bytes and a number", &name, &into[i].about)
            || read_bytes(name, &into[i].text, &into[i].size) < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a name is a tuple");
            }
            return -1;
        }
    }
    *count = (int)size;
    return 0;
}

/* The length of the line at the beginning of `text`, including the newline. 0 if there is no whole line or its hash does not follow from
 * `head`, the hash before it; -1 with an exception set. */
static Py_ssize_t
chained(NativeState *state, const char *head, const char *text, size_t size, size_t longest)
{
    const char *newline = memchr(text, '\n', size < longest ? size : longest);
    size_t length = newline == NULL ? 0 : (size_t)(newline - text) + 1;
    if (length < TAIL) {
        return 0;
    }
    char tail[TAIL];
    memcpy(tail, KEY, LENGTH(KEY));
    memcpy(tail + LENGTH(KEY) + TRACEKIT_HASH, CLOSE, LENGTH(CLOSE));
    if (tracekit_hash(state, head, text, length - TAIL, tail + LENGTH(KEY)) < 0) {
        return -1;
    }
    return memcmp(tail, text + length - TAIL, TAIL) == 0 ? (Py_ssize_t)length : 0;
}

PyDoc_STRVAR(columns_doc, "columns(block, start, before, limits, types, keys, /)\n--\n\nSee pure.columns.");

static PyObject *
columns_of(PyObject *module, PyObject *args)
{
    const char *block, *head;
    Py_ssize_t size, start, head_size, longest;
    long long offset;
    Facts last = {0};
    Expected expected;
    PyObject *lines, *hash, *run_id, *types, *keys;
    if (!PyArg_ParseTuple(
            args, "Sn(LLSLS)(ni)O!O!:columns", &lines, &start, &last.seq, &offset, &hash, &last.ts, &run_id, &longest,
            &expected.depth, &PyTuple_Type, &types, &PyTuple_Type, &keys
        )
        || read_bytes(lines, &block, &size) < 0 || read_bytes(hash, &head, &head_size) < 0
        || read_bytes(run_id, &expected.run_id, &expected.run_id_size) < 0
        || read_names(types, expected.types, MOST_TYPES, &expected.type_count) < 0
        || read_names(keys, expected.keys, MOST_KEYS, &expected.key_count) < 0) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) { /* the time of the entry before exceeds 64 bits */
            PyErr_Clear();
            Py_RETURN_NONE;
        }
        return NULL;
    }
    if (start < 0 || start > size || head_size != TRACEKIT_HASH || longest < 0 || last.seq < 0 || last.ts < 0 || offset < 0) {
        PyErr_SetString(PyExc_ValueError, "a line begins in the block, a hash has 64 digits, and nothing is negative");
        return NULL;
    }
    if (memchr(expected.run_id, '\\', (size_t)expected.run_id_size) != NULL) { /* its JSON differs from its text */
        Py_RETURN_NONE;
    }
    expected.depth = expected.depth < LEVELS ? expected.depth : LEVELS;
    NativeState *state = PyModule_GetState(module);
    Columns columns = {0};
    PyObject *result = NULL;
    while (last.seq < UINT32_MAX) {
        const char *text = block + start;
        Facts entry = {.seq = last.seq + 1, .ts = last.ts};
        Py_ssize_t length = chained(state, head, text, (size_t)(size - start), (size_t)longest);
        if (length < 0) {
            goto done;
        }
        if (!length
            || !is_entry(&expected, (const unsigned char *)text, (const unsigned char *)text + length - 1, &entry)) {
            break;
        }
        offset += length;
        if (add_row(&columns, (unsigned long long)offset, &entry) < 0) {
            goto done;
        }
        start += length;
        head = block + start - LENGTH(CLOSE) - TRACEKIT_HASH;
        last = entry;
    }
    if (columns.count == 0) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    PyObject *column[COLUMNS] = {NULL};
    int made = 1;
    for (int i = 0; i < COLUMNS; i++) {
        column[i] = PyBytes_FromStringAndSize(columns.column[i], (Py_ssize_t)(columns.count * WIDTH[i]));
        made = made && column[i] != NULL;
    }
    if (made) {
        result = Py_BuildValue(
            "n(LLNLO)OOOOOO", start, last.seq, offset, PyBytes_FromStringAndSize(head, TRACEKIT_HASH), last.ts, run_id,
            column[ENDS], column[CODES], column[MARKS], column[LANES], column[PARENTS], column[STEPS]
        );
    }
    for (int i = 0; i < COLUMNS; i++) {
        Py_XDECREF(column[i]);
    }
done:
    free_columns(&columns);
    return result;
}

/* -- columns of an index ------------------------------------------------------------------------------------------- */

/* The 32-bit numbers of an array. The caller releases the view. */
static int
view_numbers(PyObject *numbers, Py_buffer *view, int flags)
{
    if (PyObject_GetBuffer(numbers, view, flags) < 0) {
        return -1;
    }
    if (view->itemsize != sizeof(uint32_t)) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_TypeError, "an array of numbers of 32 bits is needed");
        return -1;
    }
    return 0;
}

static Py_ssize_t
count_of(const Py_buffer *view)
{
    return view->len / (Py_ssize_t)sizeof(uint32_t);
}

PyDoc_STRVAR(numbered_doc, "numbered(first, flags, width, /)\n--\n\nSee pure.numbered.");

static PyObject *
numbered(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given, *found;
    Py_ssize_t size, width, count = 0;
    unsigned long long first;
    const char *flags;
    if (!PyArg_ParseTuple(args, "KSn:numbered", &first, &given, &width) || read_bytes(given, &flags, &size) < 0) {
        return NULL;
    }
    if (width != sizeof(uint32_t) && width != sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "numbers have 4 or 8 bytes");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        count += flags[i] != 0;
    }
    if ((found = PyBytes_FromStringAndSize(NULL, count * width)) == NULL) {
        return NULL;
    }
    char *at = PyBytes_AsString(found);
    for (Py_ssize_t i = 0; i < size; i++) {
        if (flags[i]) {
            uint64_t number = first + (uint64_t)i;
            uint32_t narrow = (uint32_t)number;
            memcpy(at, width == sizeof(narrow) ? (const void *)&narrow : (const void *)&number, (size_t)width);
            at += width;
        }
    }
    return found;
}

PyDoc_STRVAR(siblings_doc, "siblings(first_child, first, parents, /)\n--\n\nSee pure.siblings.");

static PyObject *
siblings(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *children, *given;
    unsigned long first;
    Py_buffer into, from;
    if (!PyArg_ParseTuple(args, "OkO:siblings", &children, &first, &given) || view_numbers(children, &into, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    if (view_numbers(given, &from, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&into);
        return NULL;
    }
    PyObject *found = PyBytes_FromStringAndSize(NULL, from.len);
    if (found != NULL) {
        uint32_t *child = into.buf, *next = (uint32_t *)(void *)PyBytes_AsString(found);
        const uint32_t *parents = from.buf;
        for (Py_ssize_t i = 0; i < count_of(&from); i++) {
            if ((Py_ssize_t)parents[i] >= count_of(&into)) {
                PyErr_SetString(PyExc_IndexError, "array index out of range");
                Py_CLEAR(found);
                break;
            }
            next[i] = parents[i] ? child[parents[i]] : 0;
            if (parents[i]) {
                child[parents[i]] = (uint32_t)first + (uint32_t)i;
            }
        }
    }
    PyBuffer_Release(&into);
    PyBuffer_Release(&from);
    return found;
}

/* Append a number to a list. */
static int
add_number(PyObject *list, uint32_t number)
{
    PyObject *one = PyLong_FromUnsignedLong(number);
    int added = one == NULL ? -1 : PyList_Append(list, one);
    Py_XDECREF(one);
    return added;
}

PyDoc_STRVAR(answered_doc, "answered(answer, first, steps, flags, /)\n--\n\nSee pure.answered.");

static PyObject *
answered(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *answers, *given, *marked, *former = PyList_New(0);
    Py_ssize_t size;
    unsigned long first;
    const char *flags;
    Py_buffer into, from;
    if (former == NULL || !PyArg_ParseTuple(args, "OkOS:answered", &answers, &first, &given, &marked)
        || read_bytes(marked, &flags, &size) < 0 || view_numbers(answers, &into, PyBUF_WRITABLE) < 0) {
        Py_XDECREF(former);
        return NULL;
    }
    if (view_numbers(given, &from, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&into);
        Py_DECREF(former);
        return NULL;
    }
    uint32_t *answer = into.buf;
    const uint32_t *steps = from.buf;
    for (Py_ssize_t i = 0; i < count_of(&from) && i < size; i++) {
        Py_ssize_t seq = (Py_ssize_t)first + i, step = steps[i];
        if (!flags[i]) {
            continue;
        }
        if (step >= count_of(&into) || seq >= count_of(&into)) {
            PyErr_SetString(PyExc_IndexError, "array index out of range");
            Py_CLEAR(former);
            break;
        }
        if (answer[step] && add_number(former, answer[step]) < 0) {
            Py_CLEAR(former);
            break;
        }
        answer[step] = (uint32_t)seq;
        answer[seq] = (uint32_t)step;
    }
    PyBuffer_Release(&into);
    PyBuffer_Release(&from);
    return former;
}

static PyMethodDef functions[] = {
    {"answered", answered, METH_VARARGS, answered_doc},
    {"columns", columns_of, METH_VARARGS, columns_doc},
    {"numbered", numbered, METH_VARARGS, numbered_doc},
    {"siblings", siblings, METH_VARARGS, siblings_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_lines(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
