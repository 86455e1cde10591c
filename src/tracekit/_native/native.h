/* Declarations shared by the C files of tracekit._native. Each file adds its functions to the module that module.c creates. */

#ifndef TRACEKIT_NATIVE_H
#define TRACEKIT_NATIVE_H

/* Don't use formats with `#`: up to Python 3.12 they need other functions (`…_SizeT`) than the headers of 3.13 and later refer to. */
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* Methods and attributes that are looked up, and their names. */
enum {
    DIGEST, SETTLE, MIDDLE, COMPLETE, OS_WRITE, LOOK, WRITE, WRITE_WITH_READS, SYNC, WAKE, ENTER, EXIT, APPEND, CROWDED,
    JOIN, F_BACK, CO_FILENAME,
    ASYNCIO_EVENTS, ASYNCIO_TASKS, RUNNING_LOOP, CURRENT_TASK,
    OWNER, ID, THE_RUN, KNOWN, STARTS, LOOK_AT, TAIL, KEEP, JOURNAL, ENDED, POPLEFT, GIVE_BACK, ENCODE_READ, TAG, REFERENCE, EXTENSION, METHODS
};
#define METHOD_NAMES                                                                                                   \
    {"digest", "_settle", "_middle", "_complete", "_os_write", "_look", "_write", "_write_with_reads", "sync",      \
     "_wake", "__enter__", "__exit__", "append", "_crowded", "join", "f_back", "co_filename", \
     "asyncio.events", "asyncio.tasks", "_get_running_loop", "current_task", \
     "owner", "id", "run", "known", "starts", "look", "tail", "keep", "journal", "ended", "popleft", "_give_back", "_encode_read", "$t", "$ref", "$extend"}

/* The words of the key of condense.c. */
#define TRACEKIT_KEY 130

/* The state of a module object: functions of other packages, looked up when it is created. */
typedef struct {
    PyObject *dumps;     /* orjson.dumps */
    PyObject *loads;     /* orjson.loads */
    PyObject *in_order;  /* its options without sorting keys: pure.IN_ORDER */
    Py_ssize_t levels, containers, pending, piece; /* pure.LEVELS, pure.CONTAINERS, pure.PENDING, pure.PIECE */
    PyObject *getframe;  /* sys._getframe */
    PyObject *get_ident; /* threading.get_ident */
    PyObject *sha256;    /* hashlib.sha256, if sha256.c can't be used */
    PyObject *time_ns;   /* _reality.time_ns, which the test kit replaces by a clock of its own */
    PyObject *unwritten; /* errors.LogWriteError */
    uint64_t key[TRACEKIT_KEY]; /* of condense.c: random */
    int has_sha256;      /* whether sha256.c can use the processor's instructions */
    int has_ssse3;       /* whether the processor has SSSE3 */
    PyObject *method[METHODS]; /* the names of METHOD_NAMES */
} NativeState;

/* sha256.c: whether the processor has SHA (and SSSE3) instructions; and the hash of two texts, concatenated. */
int tracekit_has_sha256(void);
int tracekit_has_ssse3(void);
void tracekit_sha256(const char *first, size_t first_size, const char *rest, size_t size, unsigned char digest[32]);
/* condense.c: creates the key, with a function that returns random bytes; the bytes of the condensed form of a text, 0 if it is to be hashed
   as it is; and that form. */
int tracekit_make_key(uint64_t key[TRACEKIT_KEY], PyObject *random);
size_t tracekit_condensed(size_t size);
void tracekit_condense(const uint64_t key[TRACEKIT_KEY], const char *text, size_t size, char *into);
/* The number of hex digits of a hash. */
#define TRACEKIT_HASH 64
/* journal.c; and the hash of `head` and `size` bytes of a body in hex digits. */
int tracekit_hash(NativeState *state, const char *head, const char *body, size_t size, char *hex);
int tracekit_add_journal(PyObject *module);
/* The rest of the entry of a chunk: see pure.of_text. */
PyObject *tracekit_of_text(NativeState *state, PyObject *step, PyObject *text);
/* pieces.c */
int tracekit_add_pieces(PyObject *module);
/* lines.c */
int tracekit_add_lines(PyObject *module);
/* values.c; and the parts of a dictionary or list: see pure.parts. */
PyObject *tracekit_parts(PyObject *value, Py_ssize_t least, Py_ssize_t element);
/* Whether a text in JSON may begin with a dollar sign, as the keys of tags and references do. */
int tracekit_may_be_tagged(const char *json, size_t size);
int tracekit_add_values(PyObject *module);
/* exact.c: the value of JSON that is written exactly as orjson writes it, with at most so many levels; NULL without an exception if that is in
   doubt. */
PyObject *tracekit_exact(const char *json, size_t size, Py_ssize_t levels);
/* callers.c; and the running task or thread: see pure.owner. A new reference. */
PyObject *tracekit_owner(NativeState *state);
int tracekit_add_callers(PyObject *module);
/* heads.c */
int tracekit_add_heads(PyObject *module);
/* secrets.c */
int tracekit_add_secrets(PyObject *module);

#endif
