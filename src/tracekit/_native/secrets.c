/* The quick search for secrets of tracekit._runtime.secrets, in one pass.
 *
 * The patterns are in secret_tables.h, which tools/secret_tables.py generates from Python's regular expressions when the extension is
 * compiled. Those expressions are the definition: this code must find the same in bytes and in ASCII texts. */

#include "native.h"

#include <stdint.h>
#include <stdlib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define SIXTEEN
#include <immintrin.h>
#endif

/* A node of an expression. `set`: a set of characters, or a table of nodes by character. `least` and `most`: the number of repeats.
 * `inner`: the node inside an assertion, the second of two alternatives, or the set with which `next` begins. */
struct node {
    uint8_t kind;
    uint16_t set, least, most, inner, next;
};

/* An expression: its first node, whether it matches lower-case letters only, and what must also be in the piece. `signs`: which signs, from
 * 1 on, one of which follows every place where it matches and its second character is in the set `seconds`, within REACH characters; but not
 * where it is a parameter. 0: none. */
struct anchor {
    uint16_t root;
    uint8_t lowered, beside, signs;
    uint16_t seconds;
};

enum { NOTHING, A_PARAMETER, AN_AT_SIGN };
/* The result of a match: it is certain, or depends on the rest of the piece. */
enum { DECIDED, OF_A_FIELD, OF_A_PARAMETER };
enum { UNKNOWN, NO, YES };
#define WITHOUT_END 0xFFFF

#include "secret_tables.h"

typedef const uint8_t *place;

/* A run of characters of one set. */
struct run {
    place begin, end;
    const uint8_t *class_of;
    unsigned set;
};

#define RUNS 4
/* Scanning a shorter run again is faster than finding it among the known ones. */
#define LONG 16

struct text {
    place begin, end;
    const uint8_t *class_of; /* of the current expression */
    int way;                 /* the result of the last match */
    struct run runs[RUNS];   /* the most recent long ones */
};

static inline int
class_at(const struct text *text, place at)
{
    return at < text->end ? text->class_of[*at] : END_CLASS;
}

/* The number of characters from a place on that are in a set, up to `most`. Names close to one another ask for the same characters: known
 * runs are not scanned again, so that a text is scanned once. */
static size_t
run_from(struct text *text, unsigned set, place at, size_t most)
{
    const uint8_t *in = member[set];
    struct run *run = &text->runs[set % RUNS];
    size_t count = 0;
    int known = run->set == set && run->class_of == text->class_of && at >= run->begin && at < run->end;
    if (known) {
        count = (size_t)(run->end - at);
        if (count >= most) {
            return most;
        }
    }
    while (count < most && in[text->class_of[at[count]]]) {
        count++;
    }
    if (count >= LONG) {
        *run = (struct run){known ? run->begin : at, at + count, text->class_of, set};
    }
    return count;
}

/* The end of the match that begins at a place, or NULL. The expressions are bounded, and so is the recursion. */
static place
matched(struct text *text, unsigned number, place at)
{
    for (;;) {
        const struct node *node = &nodes[number];
        switch (node->kind) {
        case FAIL:
            return NULL;
        case MATCH:
            text->way = node->least;
            return at;
        case SET:
            if (!member[node->set][class_at(text, at)]) {
                return NULL;
            }
            at++;
            break;
        case RUN: {
            const uint16_t *sets = &runs[node->set];
            if ((size_t)(text->end - at) < node->least) {
                return NULL;
            }
            for (unsigned i = 0; i < node->least; i++) {
                if (!member[sets[i]][text->class_of[at[i]]]) {
                    return NULL;
                }
            }
            at += node->least;
            break;
        }
        case RUN_BEFORE: {
            const uint16_t *sets = &runs[node->set];
            if ((size_t)(at - text->begin) < node->least) {
                return NULL;
            }
            for (unsigned i = 0; i < node->least; i++) {
                if (!member[sets[i]][text->class_of[*--at]]) {
                    return NULL;
                }
            }
            break;
        }
        case IS:
            if (!member[node->set][class_at(text, at)]) {
                return NULL;
            }
            break;
        case MOST:
        case REPEAT: {
            size_t left = (size_t)(text->end - at);
            if (node->most != WITHOUT_END && left > node->most) {
                left = node->most;
            }
            size_t count = run_from(text, node->set, at, left);
            if (count < node->least) {
                return NULL;
            }
            if (node->kind == REPEAT) {
                const uint8_t *begins = member[node->inner];
                for (; count > node->least; count--) {
                    if (begins[class_at(text, at + count)]) {
                        place end = matched(text, node->next, at + count);
                        if (end != NULL) {
                            return end;
                        }
                    }
                }
            }
            at += count;
            break;
        }
        case SWITCH:
            number = following[node->set][class_at(text, at)];
            continue;
        case SECOND: /* leave the repeat at a character with which the rest may begin */
            if (text->end - at > 1 ? !member[node->set][text->class_of[at[1]]] : !member[node->set][END_CLASS]) {
                return NULL;
            }
            break;
        case EITHER: {
            place end = matched(text, node->inner, at);
            if (end != NULL) {
                return end;
            }
            break;
        }
        case AHEAD:
            if (!member[node->set][class_at(text, at)] || matched(text, node->inner, at) == NULL) {
                return NULL;
            }
            break;
        case NOT_AHEAD:
            if (member[node->set][class_at(text, at)] && matched(text, node->inner, at) != NULL) {
                return NULL;
            }
            break;
        case BEHIND:
            if (matched(text, node->inner, at) == NULL) {
                return NULL;
            }
            break;
        case NOT_BEHIND:
            if (matched(text, node->inner, at) != NULL) {
                return NULL;
            }
            break;
        case BEFORE_IS:
            if (at == text->begin || !member[node->set][text->class_of[at[-1]]]) {
                return NULL;
            }
            at--;
            break;
        case TRIE:
            if (at == text->begin) {
                return NULL;
            }
            number = following[node->set][text->class_of[at[-1]]];
            at--;
            continue;
        case ATOMIC:
            at = matched(text, node->inner, at);
            if (at == NULL) {
                return NULL;
            }
            break;
        case END:
            if (at != text->end) {
                return NULL;
            }
            break;
        }
        number = node->next;
    }
}

/* Properties of a piece, each computed when it is first needed. */
struct about {
    int parameters, questions, field, at_sign;
};

static int
has(const struct text *text, const char *signs)
{
    for (; *signs != '\0'; signs++) {
        if (memchr(text->begin, *signs, (size_t)(text->end - text->begin)) != NULL) {
            return 1;
        }
    }
    return 0;
}

/* See secrets._is_parameter. */
static int
is_parameter(struct text *text, place start, place end)
{
    place at = start, least = start - text->begin > BEFORE ? start - BEFORE : text->begin;
    while (at > least && member[WORD_SET][text->class_of[at[-1]]]) {
        at--;
    }
    if (at > least && strchr("?&#", at[-1]) != NULL && at[-1] != '\0') {
        return matched(text, PARAMETER, end) != NULL;
    }
    while (at > least && at[-1] == ' ') {
        at--;
    }
    return at > least && at[-1] == ';';
}

static int
has_field(struct text *text)
{
    place at = text->begin;
    while ((at = memchr(at, '"', (size_t)(text->end - at))) != NULL) {
        if (matched(text, VALUE_FIELD, at) != NULL) {
            return 1;
        }
        at++;
    }
    return 0;
}

/* Whether the piece has what an expression needs elsewhere: the signs of parameters, and in bytes, which are whole values, of a user. */
static int
stands_beside(const struct text *text, struct about *about, int beside, int texts)
{
    if (beside == A_PARAMETER) {
        if (about->questions == UNKNOWN) {
            about->questions = has(text, "?&;") ? YES : NO;
        }
        return about->questions == YES;
    }
    if (about->at_sign == UNKNOWN) {
        about->at_sign = texts || has(text, "@") ? YES : NO;
    }
    return about->at_sign == YES;
}

static int
has_parameters(const struct text *text, struct about *about)
{
    if (about->parameters == UNKNOWN) {
        about->parameters = has(text, "?&;#") ? YES : NO;
    }
    return about->parameters == YES;
}

/* See secrets._decides. */
static int
decides(struct text *text, struct about *about, int way, place start, place end, int texts)
{
    if (way == OF_A_PARAMETER) {
        return has_parameters(text, about) && is_parameter(text, start, end);
    }
    if (way == OF_A_FIELD) {
        if (about->field == UNKNOWN) {
            about->field = !texts && has_field(text) ? YES : NO;
        }
        return about->field == YES;
    }
    return 1;
}

/* How much further than one place needs the signs are searched for. */
#define FURTHER 256

/* What is known of the signs behind a place: there is none from there up to `clear`, or the next one is `found`. */
struct ahead {
    place clear, found;
};

static inline int
is_sign(unsigned signs, uint8_t byte)
{
    return sign_halves[signs][0][byte & 15] & sign_halves[signs][1][byte >> 4];
}

#ifdef SIXTEEN

__attribute__((target("ssse3"))) static place
sixteen_without(unsigned signs, place at, place until)
{
    const __m128i half = _mm_set1_epi8(15);
    const __m128i by_low = _mm_loadu_si128((const __m128i *)sign_halves[signs][0]);
    const __m128i by_high = _mm_loadu_si128((const __m128i *)sign_halves[signs][1]);
    for (; until - at >= 16; at += 16) {
        __m128i several = _mm_loadu_si128((const __m128i *)at);
        __m128i low = _mm_shuffle_epi8(by_low, _mm_and_si128(several, half));
        __m128i high = _mm_shuffle_epi8(by_high, _mm_and_si128(_mm_srli_epi16(several, 4), half));
        __m128i none = _mm_cmpeq_epi8(_mm_and_si128(low, high), _mm_setzero_si128());
        uint32_t mask = ~(uint32_t)_mm_movemask_epi8(none) & 0xffff;
        if (mask) {
            return at + __builtin_ctz(mask);
        }
    }
    return at;
}

#endif

/* Whether an anchor has none of its signs near a place, so that it can't match there in a piece without parameters. A text is scanned once:
 * the places come in order. */
static int
is_plain(const struct text *text, const struct anchor *anchor, place at, int sixteen, struct ahead *known)
{
    place until = text->end - at > REACH ? at + REACH : text->end;
    if (known->found != NULL && known->found >= at) {
        return known->found >= until;
    }
    if (known->clear >= until) {
        return 1;
    }
    place from = known->clear > at ? known->clear : at;
    place last = text->end - until > FURTHER ? until + FURTHER : text->end; /* in steps that are worth their while */
#ifdef SIXTEEN
    if (sixteen) {
        from = sixteen_without(anchor->signs - 1u, from, last);
    }
#else
    (void)sixteen;
#endif
    while (from < last && !is_sign(anchor->signs - 1u, *from)) {
        from++;
    }
    known->clear = from;
    known->found = from < last ? from : NULL;
    return from >= until;
}

/* The matches found: the number of the expression, and the place. */
struct places {
    size_t count, room;
    struct {
        int number;
        Py_ssize_t at;
    } *found;
};

static int
add_place(struct places *places, int number, Py_ssize_t at)
{
    if (places->count == places->room) {
        size_t room = places->room == 0 ? 16 : 2 * places->room;
        void *found = realloc(places->found, room * sizeof(*places->found));
        if (found == NULL) {
            return -1;
        }
        places->found = found;
        places->room = room;
    }
    places->found[places->count].number = number;
    places->found[places->count].at = at;
    places->count++;
    return 0;
}

#ifdef SIXTEEN

/* The groups of anchors to which each of sixteen characters belongs, looked up by its two halves. */
__attribute__((target("ssse3"))) static inline __m128i
groups_of(__m128i characters, const uint8_t halves[2][16])
{
    const __m128i half = _mm_set1_epi8(15);
    __m128i low = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)halves[0]), _mm_and_si128(characters, half));
    __m128i high = _mm_and_si128(_mm_srli_epi16(characters, 4), half);
    return _mm_and_si128(low, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)halves[1]), high));
}

/* Find the next sixteen places, all before `last`, of which at least one may be an anchor; `mask` gets a bit for each. If `mask` is 0,
 * there is no anchor before the returned place, and fewer than sixteen places are left. */
__attribute__((target("ssse3"))) static place
next_sixteen(place at, place last, int texts, uint32_t *mask)
{
    for (; last - at >= 16; at += 16) {
        __m128i first = groups_of(_mm_loadu_si128((const __m128i *)at), nibbles[texts][0]);
        __m128i second = groups_of(_mm_loadu_si128((const __m128i *)(at + 1)), nibbles[texts][1]);
        __m128i none = _mm_cmpeq_epi8(_mm_and_si128(first, second), _mm_setzero_si128());
        *mask = ~(uint32_t)_mm_movemask_epi8(none) & 0xffff;
        if (*mask) {
            return at;
        }
    }
    *mask = 0;
    return at;
}

#endif

/* The state of a search for possible anchors. */
struct candidates {
    place block; /* the sixteen places to which `mask` refers, or NULL */
    uint32_t mask;
    int sixteen; /* whether the processor can test sixteen at once */
};

static inline place
next_candidate(struct candidates *known, place at, place last, int texts)
{
#ifdef SIXTEEN
    while (known->sixteen) {
        if (known->block != NULL && at - known->block < 16) {
            uint32_t left = known->mask >> (at - known->block);
            if (left) {
                return at + __builtin_ctz(left);
            }
            at = known->block + 16;
        }
        at = known->block = next_sixteen(at, last, texts, &known->mask);
        known->sixteen = known->mask != 0;
    }
#else
    (void)known;
#endif
    const uint32_t *first = possible[texts][0], *second = possible[texts][1];
    while (at < last && !(first[at[0]] & second[at[1]])) {
        at++;
    }
    return at;
}

/* Whether an expression matches; with `places`, collects all matches. -1: out of memory. */
static int
looked(place begin, size_t size, int texts, int sixteen, struct places *places)
{
    struct text text = {.begin = begin, .end = begin + size, .way = DECIDED};
    struct about about = {UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN};
    place after[ANCHORS] = {NULL};
    const uint32_t *first = possible[texts][0], *second = possible[texts][1], *third = possible[texts][2];
    if (size < (places == NULL ? SHORTEST : 2)) { /* no expression is shorter than two characters */
        return 0;
    }
    struct candidates known = {NULL, 0, sixteen};
    uint32_t left = ~(uint32_t)0; /* the anchors that can be in this piece */
    struct ahead ahead[SIGNS];
    for (int i = 0; i < SIGNS; i++) {
        ahead[i] = (struct ahead){begin, NULL};
    }
    for (place at = begin, last = text.end - 1; (at = next_candidate(&known, at, last, texts)) < last; at++) {
        uint32_t here = first[at[0]] & second[at[1]] & left;
        if (here == 0 || (last - at > 1 && (here &= third[at[2]]) == 0)) {
            continue;
        }
        for (int number = 0; here != 0; number++, here >>= 1) {
            if (!(here & 1) || (after[number] != NULL && at < after[number])) {
                continue;
            }
            const struct anchor *anchor = &anchors[number];
            if (anchor->beside != NOTHING && !stands_beside(&text, &about, anchor->beside, texts)) {
                left &= ~(1u << number);
                continue;
            }
            text.class_of = class_of[texts][anchor->lowered];
            if (anchor->signs != 0 && member[anchor->seconds][text.class_of[at[1]]] && !has_parameters(&text, &about) &&
                is_plain(&text, anchor, at, sixteen, &ahead[anchor->signs - 1])) {
                continue;
            }
            place end = matched(&text, anchor->root, at);
            if (end == NULL) {
                continue;
            }
            after[number] = end;
            if (decides(&text, &about, text.way, at, end, texts)) {
                if (places == NULL) {
                    return 1;
                }
                if (add_place(places, number, at - begin) < 0) {
                    return -1;
                }
            }
        }
    }
    return places != NULL && places->count > 0;
}

static int
looked_in_pieces(const char *data, Py_ssize_t size, int texts, int sixteen)
{
    const Py_ssize_t most = PIECE + OVERLAP;
    if (size <= most) {
        return looked((place)data, (size_t)size, texts, sixteen, NULL);
    }
    for (Py_ssize_t at = 0; at < size; at += PIECE) {
        if (looked((place)data + at, (size_t)(size - at < most ? size - at : most), texts, sixteen, NULL)) {
            return 1;
        }
    }
    return 0;
}

/* Up to this size a search is too short for releasing the GIL to pay. */
#define SHORT 32768

static int
takes_sixteen(PyObject *module)
{
    return ((NativeState *)PyModule_GetState(module))->has_ssse3;
}

static PyObject *
answer(PyObject *module, const char *data, Py_ssize_t size, int texts)
{
    int found, sixteen = takes_sixteen(module);
    if (size <= SHORT) {
        found = looked_in_pieces(data, size, texts, sixteen);
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        found = looked_in_pieces(data, size, texts, sixteen);
        Py_END_ALLOW_THREADS
    }
    return PyBool_FromLong(found);
}

static PyObject *
look_at_bytes(PyObject *module, PyObject *data)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0) {
        return NULL;
    }
    return answer(module, bytes, size, 0);
}

/* The characters of an ASCII text. NULL if it is not ASCII, or with an exception set. */
static const char *
ascii_of(PyObject *text, Py_ssize_t *size)
{
    const char *bytes = PyUnicode_AsUTF8AndSize(text, size);
    if (bytes == NULL) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) { /* a lone surrogate */
            PyErr_Clear();
        }
        return NULL;
    }
    return *size == PyUnicode_GetLength(text) ? bytes : NULL;
}

static PyObject *
look_at_text(PyObject *module, PyObject *text)
{
    Py_ssize_t size;
    const char *bytes = ascii_of(text, &size);
    if (bytes == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    return answer(module, bytes, size, 1);
}

static PyObject *
places_in_text(PyObject *module, PyObject *text)
{
    Py_ssize_t size;
    const char *bytes = ascii_of(text, &size);
    if (bytes == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    struct places places = {0, 0, NULL};
    int done, sixteen = takes_sixteen(module);
    Py_BEGIN_ALLOW_THREADS
    done = looked((place)bytes, (size_t)size, 1, sixteen, &places);
    Py_END_ALLOW_THREADS
    PyObject *found = done < 0 ? PyErr_NoMemory() : PyList_New((Py_ssize_t)places.count);
    for (size_t i = 0; found != NULL && i < places.count; i++) {
        PyObject *one = Py_BuildValue("(in)", places.found[i].number, places.found[i].at);
        if (one == NULL || PyList_SetItem(found, (Py_ssize_t)i, one) < 0) {
            Py_CLEAR(found);
        }
    }
    free(places.found);
    return found;
}

/* Longer pieces are searched in Python. */
#define ROOM 4096

/* Whether one of the places in `window` begins with a text. */
static int
has_text(const char *window, size_t length, const char *text, size_t size)
{
    const char *at = window, *end = window + length;
    while ((size_t)(end - at) >= size && (at = memchr(at, *text, (size_t)(end - at) - size + 1)) != NULL) {
        if (memcmp(at, text, size) == 0) {
            return 1;
        }
        at++;
    }
    return 0;
}

static PyObject *
passing(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "passing() takes two texts, a number and a tuple of texts");
        return NULL;
    }
    char window[ROOM];
    size_t length = 0;
    for (int i = 0; i < 2; i++) {
        Py_ssize_t size;
        const char *bytes = ascii_of(args[i], &size);
        if (bytes == NULL || length + (size_t)size > ROOM) {
            return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
        }
        memcpy(window + length, bytes, (size_t)size);
        length += (size_t)size;
    }
    Py_ssize_t keep = PyLong_AsSsize_t(args[2]), size = (Py_ssize_t)length;
    if (keep < 1) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "at least one character is kept");
    }
    const char *at = window, *last = window + length;
    while (last - at >= 3 && (at = memchr(at, ':', (size_t)(last - at - 2))) != NULL) {
        if (at[1] == '/' && at[2] == '/') {
            Py_RETURN_NONE;
        }
        at++;
    }
    if (looked((place)window, length, 1, takes_sixteen(module), NULL)) {
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(args[3]); i++) {
        Py_ssize_t characters;
        const char *start = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(args[3], i), &characters);
        if (start == NULL) {
            return NULL;
        }
        if (characters == 0 || has_text(window, length, start, (size_t)characters)) {
            Py_RETURN_NONE;
        }
    }
    return PyUnicode_FromStringAndSize(size > keep ? last - keep : window, size > keep ? keep : size);
}

static PyMethodDef looks[] = {
    {"look_at_bytes", look_at_bytes, METH_O, "Whether bytes may hold a secret."},
    {"look_at_text", look_at_text, METH_O, "Whether a text may hold a secret; None where it is not ASCII."},
    {"places_in_text", places_in_text, METH_O, "Where to look closer in a text; None where it is not ASCII."},
    {"passing", (PyCFunction)(void (*)(void))passing, METH_FASTCALL, "See secrets.passing."},
};

PyDoc_STRVAR(quick_look_doc, "quick_look(made_from, /)\n--\n\nSee pure.quick_look.");

static PyObject *
quick_look(PyObject *module, PyObject *made_from)
{
    if (!PyUnicode_Check(made_from)) {
        PyErr_SetString(PyExc_TypeError, "quick_look() takes a text");
        return NULL;
    }
    if (PyUnicode_CompareWithASCIIString(made_from, SECRETS_MADE_FROM) != 0) {
        Py_RETURN_NONE;
    }
    PyObject *several = PyTuple_New(Py_ARRAY_LENGTH(looks));
    for (size_t i = 0; several != NULL && i < Py_ARRAY_LENGTH(looks); i++) {
        PyObject *one = PyCFunction_New(&looks[i], module);
        if (one == NULL || PyTuple_SetItem(several, (Py_ssize_t)i, one) < 0) {
            Py_CLEAR(several);
        }
    }
    return several;
}

static PyMethodDef functions[] = {
    {"quick_look", quick_look, METH_O, quick_look_doc},
    {NULL, NULL, 0, NULL},
};

int
tracekit_add_secrets(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
