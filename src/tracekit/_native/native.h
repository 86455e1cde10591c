/* What the C files of tracekit._native share. Each adds its functions to the module that module.c makes. */

#ifndef TRACEKIT_NATIVE_H
#define TRACEKIT_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

/* values.c */
int tracekit_add_values(PyObject *module);

#endif
