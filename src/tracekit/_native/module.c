/* The extension module tracekit._native._compiled: the functions of pure.py, in C.
 *
 * It uses CPython's limited API alone, so that one binary serves every version from 3.11 on, and has no mutable state but what
 * belongs to a module object. */

#include "native.h"

#ifndef TRACEKIT_SOURCES
#define TRACEKIT_SOURCES ""
#endif

static int
module_exec(PyObject *module)
{
    if (tracekit_add_values(module) < 0) {
        return -1;
    }
    /* Which sources it was made of: a test says where an installation is older than its checkout. */
    return PyModule_AddStringConstant(module, "SOURCES", TRACEKIT_SOURCES);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tracekit._native._compiled",
    .m_doc = "The functions of tracekit._native.pure, in C.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    return PyModuleDef_Init(&module_definition);
}
