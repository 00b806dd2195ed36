/* The module ipcbench.trace.record.hot._c. */

#include "hot.h"

Layout layout;
PyObject *zero;

static bool read_layout(void) {
    const struct { const char *name; int64_t *place; } wanted[] = {
        {"HEADER_BYTES", &layout.header_bytes}, {"RECORD_BYTES", &layout.record_bytes}, {"MARKER", &layout.marker},
        {"SUM_CELLS", &layout.sum_cells}, {"BIN_COUNT", &layout.bin_count}, {"BINS_PER_OCTAVE", &layout.bins_per_octave},
        {"SUMS_EVERY", &layout.sums_every},
    };
    PyObject *module = PyImport_ImportModule("ipcbench.trace.format");
    for (size_t i = 0; module != NULL && i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *value = PyObject_GetAttrString(module, wanted[i].name);
        if (value != NULL) *wanted[i].place = PyLong_AsLongLong(value);
        Py_XDECREF(value);
        if (PyErr_Occurred()) Py_CLEAR(module);
    }
    Py_XDECREF(module);
    if (module == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_SetString(PyExc_ImportError, "it was built for another version of ipcbench");
    return module != NULL;
}

/* Return the time of the clock that the rest of ipcbench uses; -1 with an error. */
static int64_t their_clock_ns(void) {
    PyObject *module = PyImport_ImportModule("ipcbench.util.clock");
    PyObject *value = module == NULL ? NULL : PyObject_CallMethod(module, "now_ns", NULL);
    int64_t at_ns = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(module);
    Py_XDECREF(value);
    return at_ns;
}

static bool is_same_clock(void) {
    int64_t before_ns = their_clock_ns(), at_ns = now_ns(), after_ns = before_ns < 0 ? -1 : their_clock_ns();
    if (PyErr_Occurred()) return false;
    if (before_ns <= at_ns && at_ns <= after_ns) return true;
    PyErr_SetString(PyExc_ImportError, "time.monotonic_ns is another clock here");
    return false;
}

int add_methods(PyObject *module, const char *name, PyMethodDef *methods, PyMethodDef *prepare) {
    PyObject *all = PyDict_New();
    for (; all != NULL && methods != NULL && methods->ml_name != NULL; methods++) {
        PyObject *function = PyCFunction_New(methods, NULL);
        PyObject *method = function == NULL ? NULL : PyInstanceMethod_New(function);
        if (method == NULL || PyDict_SetItemString(all, methods->ml_name, method) < 0) Py_CLEAR(all);
        Py_XDECREF(function);
        Py_XDECREF(method);
    }
    int added = all == NULL ? -1 : name == NULL ? 0 : PyModule_AddObjectRef(module, name, all);
    Py_XDECREF(all);
    PyObject *function = added < 0 ? NULL : PyCFunction_New(prepare, NULL);
    added = function == NULL ? -1 : PyModule_AddObjectRef(module, prepare->ml_name, function);
    Py_XDECREF(function);
    return added;
}

/* is_main_interpreter(): others find the module as it is, and must not use what belongs to the main one. */
static PyObject *is_main_interpreter(PyObject *module, PyObject *none) {
    return PyBool_FromLong(PyInterpreterState_Get() == PyInterpreterState_Main());
}

static PyMethodDef functions[] = {{"is_main_interpreter", is_main_interpreter, METH_NOARGS, NULL}, {NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ipcbench.trace.record.hot._c",
    .m_doc = "The hot path of a traced call, in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__c(void) {
#if defined(Py_GIL_DISABLED) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    PyErr_SetString(PyExc_ImportError, "it needs the GIL, and little-endian numbers");
    return NULL;
#endif
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "it works in the main interpreter only");
        return NULL;
    }
    if (!read_layout() || !is_same_clock()) return NULL;
    if ((zero = PyLong_FromLong(0)) == NULL) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddType(module, &slots_type) < 0 || PyModule_AddType(module, &histograms_type) < 0 ||
        PyModule_AddType(module, &call_site_type) < 0 || PyModule_AddType(module, &call_type) < 0 ||
        PyModule_AddType(module, &no_op_type) < 0 || PyModule_AddType(module, &recorder_type) < 0 ||
        PyModule_AddType(module, &traffic_type) < 0 || add_traffic_functions(module) < 0 ||
        add_socket_functions(module) < 0 || add_connection_functions(module) < 0 || add_audit_functions(module) < 0 ||
        PyModule_AddIntConstant(module, "CONTRACT", CONTRACT) < 0)
        Py_CLEAR(module);
    return module;
}
