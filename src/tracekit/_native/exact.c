/* JSON that is written exactly as orjson writes it, read in one pass; else it would be parsed, written again and compared.
 *
 * Most bodies of requests and many of responses are so. Whatever is in doubt is left to orjson: other spacing, escapes or numbers, a key that
 * occurs twice, deep nesting. */

#include "native.h"

#if defined(__SSE2__) && defined(__GNUC__)
#define SIXTEEN
#include <emmintrin.h>
#endif

/* So many keys of a body are kept, by their sizes and first characters: most objects of a list have the same. */
#define KEYS 32
/* A longer number, or deeper nesting, is in doubt. */
#define NUMBER 18
#define DEEP 200

typedef struct {
    const char *at, *end;
    Py_ssize_t levels; /* that are left */
    struct {
        const char *begin;
        PyObject *text;
    } keys[KEYS];
} Reader;

static PyObject *read_value(Reader *reader);

/* The first byte from `at` on that is no plain character of a text: a quotation mark, a backslash or a control character. */
static const char *
plain_until(const char *at, const char *end)
{
#ifdef SIXTEEN
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    for (; end - at >= 16; at += 16) {
        __m128i several = _mm_loadu_si128((const __m128i *)at);
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(several, quote), _mm_cmpeq_epi8(several, backslash));
        found = _mm_or_si128(found, _mm_cmpeq_epi8(_mm_min_epu8(several, control), several));
        int mask = _mm_movemask_epi8(found);
        if (mask) {
            return at + __builtin_ctz((unsigned)mask);
        }
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && (unsigned char)*at > 0x1f) {
        at++;
    }
    return at;
}

/* A text; NULL without an exception, as of each function below, if the bytes are in doubt. */
static PyObject *
from_utf8(const char *bytes, size_t size)
{
    PyObject *text = PyUnicode_FromStringAndSize(bytes, (Py_ssize_t)size);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
    }
    return text;
}

static int
hex_digit(char digit)
{
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The character of an escape at a backslash, if orjson writes it so, and how long that is; else -1. */
static int
escaped(const char *at, const char *end, size_t *size)
{
    static const char letters[] = "\"\\bfnrt", meant[] = "\"\\\b\f\n\r\t";
    *size = 2;
    if (at[1] != 'u') {
        const char *letter = at[1] ? strchr(letters, at[1]) : NULL;
        return letter == NULL ? -1 : meant[letter - letters];
    }
    *size = 6;
    if (end - at < 6 || at[2] != '0' || at[3] != '0' || (at[4] != '0' && at[4] != '1') || hex_digit(at[5]) < 0) {
        return -1;
    }
    int character = (at[4] - '0') * 16 + hex_digit(at[5]);
    return character != 0 && strchr(meant, character) != NULL ? -1 : character;
}

/* A text with escapes, the first of them at `at`. */
static PyObject *
unescaped(Reader *reader, const char *at)
{
    const char *begin = reader->at, *end = at;
    while (end < reader->end && *end == '\\') { /* what follows a backslash is part of its escape */
        end = reader->end - end < 2 ? reader->end : plain_until(end + 2, reader->end);
    }
    if (end == reader->end || *end != '"') {
        return NULL;
    }
    char *text = PyMem_Malloc((size_t)(end - begin)), *into = text;
    if (text == NULL) {
        return PyErr_NoMemory();
    }
    memcpy(into, begin, (size_t)(at - begin));
    into += at - begin;
    while (at < end) {
        size_t size;
        int character = escaped(at, end, &size);
        if (character < 0) {
            PyMem_Free(text);
            return NULL;
        }
        *into++ = (char)character;
        at += size;
        const char *next = memchr(at, '\\', (size_t)(end - at));
        next = next == NULL ? end : next;
        memcpy(into, at, (size_t)(next - at));
        into += next - at;
        at = next;
    }
    PyObject *made = from_utf8(text, (size_t)(into - text));
    PyMem_Free(text);
    reader->at = end + 1;
    return made;
}

/* A text whose opening quotation mark has been read. */
static PyObject *
read_text(Reader *reader)
{
    const char *begin = reader->at, *end = plain_until(begin, reader->end);
    if (end < reader->end && *end == '"') {
        reader->at = end + 1;
        return from_utf8(begin, (size_t)(end - begin));
    }
    return unescaped(reader, end);
}

static PyObject *
read_key(Reader *reader)
{
    const char *begin = reader->at, *end = plain_until(begin, reader->end);
    size_t size = (size_t)(end - begin);
    if (end == reader->end || *end != '"' || size == 0) {
        return read_text(reader);
    }
    size_t number = (size * 7 + (unsigned char)begin[0] + (unsigned char)begin[size - 1]) % KEYS;
    const char *known = reader->keys[number].begin;
    if (known != NULL && memcmp(known, begin, size + 1) == 0) { /* up to the quotation mark, which is in no key */
        reader->at = end + 1;
        return Py_NewRef(reader->keys[number].text);
    }
    PyObject *text = read_text(reader);
    if (text != NULL && known == NULL) {
        reader->keys[number].begin = begin;
        reader->keys[number].text = Py_NewRef(text);
    }
    return text;
}

static PyObject *
read_object(Reader *reader)
{
    PyObject *found = PyDict_New();
    Py_ssize_t count = 0;
    int more = 1;
    if (found != NULL && reader->at < reader->end && *reader->at == '}') {
        reader->at++;
        return found;
    }
    while (found != NULL && more) {
        PyObject *key = NULL, *value = NULL;
        int right = reader->at < reader->end && *reader->at++ == '"' && (key = read_key(reader)) != NULL &&
                    reader->at < reader->end && *reader->at++ == ':' && (value = read_value(reader)) != NULL &&
                    PyDict_SetItem(found, key, value) == 0 && reader->at < reader->end;
        Py_XDECREF(key);
        Py_XDECREF(value);
        count++;
        char next = right ? *reader->at++ : 0;
        more = next == ',';
        if (!more && next != '}') {
            Py_CLEAR(found);
        }
    }
    if (found != NULL && PyDict_Size(found) != count) { /* a key is there twice */
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
read_array(Reader *reader)
{
    PyObject *found = PyList_New(0);
    int more = 1;
    if (found != NULL && reader->at < reader->end && *reader->at == ']') {
        reader->at++;
        return found;
    }
    while (found != NULL && more) {
        PyObject *value = read_value(reader);
        int right = value != NULL && PyList_Append(found, value) == 0 && reader->at < reader->end;
        Py_XDECREF(value);
        char next = right ? *reader->at++ : 0;
        more = next == ',';
        if (!more && next != ']') {
            Py_CLEAR(found);
        }
    }
    return found;
}

/* A number with a point, if Python writes it as orjson does: without an exponent. */
static PyObject *
read_float(const char *begin, size_t size)
{
    char text[2 * NUMBER], *written;
    if (size >= sizeof(text)) {
        return NULL;
    }
    memcpy(text, begin, size);
    text[size] = '\0';
    double value = PyOS_string_to_double(text, NULL, NULL);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return NULL;
    }
    written = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (written == NULL) {
        return NULL;
    }
    int same = strcmp(written, text) == 0;
    PyMem_Free(written);
    return same ? PyFloat_FromDouble(value) : NULL;
}

static PyObject *
read_number(Reader *reader)
{
    const char *begin = reader->at, *at = begin + (*begin == '-'), *digits = at, *end = reader->end;
    long long value = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - digits <= NUMBER) {
        value = value * 10 + (*at++ - '0');
    }
    if (at == digits || at - digits > NUMBER || (*digits == '0' && at - digits > 1)) {
        return NULL;
    }
    if (at < end && *at == '.') {
        const char *point = at++;
        while (at < end && *at >= '0' && *at <= '9') {
            at++;
        }
        if (at == point + 1) {
            return NULL;
        }
        reader->at = at;
        return read_float(begin, (size_t)(at - begin));
    }
    if (digits != begin && value == 0) {
        return NULL;
    }
    reader->at = at; /* an exponent is no end of a value */
    return PyLong_FromLongLong(digits == begin ? value : -value);
}

static PyObject *
read_constant(Reader *reader, const char *name, PyObject *value)
{
    size_t size = strlen(name);
    if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, name, size) != 0) {
        return NULL;
    }
    reader->at += size;
    return Py_NewRef(value);
}

static PyObject *
read_value(Reader *reader)
{
    PyObject *value = NULL;
    switch (reader->at < reader->end ? *reader->at : 0) {
    case '"':
        reader->at++;
        return read_text(reader);
    case '{':
    case '[':
        if (reader->levels > 0) {
            reader->levels--;
            value = *reader->at++ == '{' ? read_object(reader) : read_array(reader);
            reader->levels++;
        }
        return value;
    case 't':
        return read_constant(reader, "true", Py_True);
    case 'f':
        return read_constant(reader, "false", Py_False);
    case 'n':
        return read_constant(reader, "null", Py_None);
    case '-':
    case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        return read_number(reader);
    default:
        return NULL;
    }
}

PyObject *
tracekit_exact(const char *json, size_t size, Py_ssize_t levels)
{
    Reader reader = {.at = json, .end = json + size, .levels = levels < DEEP ? levels : DEEP};
    PyObject *value = read_value(&reader);
    for (int i = 0; i < KEYS; i++) {
        Py_XDECREF(reader.keys[i].text);
    }
    if (value != NULL && reader.at != reader.end) {
        Py_CLEAR(value);
    }
    return value;
}
