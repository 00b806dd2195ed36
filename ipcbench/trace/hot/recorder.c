/* HotRecorder: beginning a call. See recorder.py. */

#include "hot.h"

static int recorder_init(HotRecorder *self, PyObject *args, PyObject *kwargs) {
    PyObject *local, *rpc;
    if (!PyArg_ParseTuple(args, "OO", &local, &rpc)) return -1;
    Py_XSETREF(self->local, Py_NewRef(local));
    Py_XSETREF(self->rpc, Py_NewRef(rpc));
    return 0;
}

/* Return the entries of this thread, borrowed; NULL without an error if it has none. */
static PyObject *recorder_entries(HotRecorder *self) {
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (self->latest_entries == NULL || self->latest_thread != thread) {
        PyObject *entries = PyObject_GetAttrString(self->local, "entries");
        if (entries == NULL || !PyDict_Check(entries)) {
            PyErr_Clear();
            Py_XDECREF(entries);
            return NULL;
        }
        Py_XSETREF(self->latest_entries, entries);
        self->latest_thread = thread;
    }
    return self->latest_entries;
}

/* Return the entry under which such calls are found, borrowed; NULL without an error if there is none. */
static PyObject *recorder_entry(HotRecorder *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *entries = recorder_entries(self);
    PyObject *key, *entry = NULL;
    if (entries == NULL) return NULL;
    bool has_peer = count > 2 && PyObject_IsTrue(args[2]) != 0;
    if (count == 1 || (args[1] == self->rpc && !has_peer)) {
        key = Py_NewRef(args[0]);
    } else {
        PyObject *id = PyLong_FromVoidPtr(args[1]);
        PyObject *peer = has_peer ? Py_NewRef(args[2]) : PyUnicode_New(0, 0);
        key = id == NULL || peer == NULL ? NULL : PyTuple_Pack(3, args[0], id, peer);
        Py_XDECREF(id);
        Py_XDECREF(peer);
    }
    if (key != NULL) entry = PyDict_GetItemWithError(entries, key);
    Py_XDECREF(key);
    PyErr_Clear();
    return entry;
}

/* call(method, schema, peer, trace_id): see recorder.py. */
static PyObject *recorder_call(HotRecorder *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    if (named == NULL && 1 <= count && (count < 4 || (count == 4 && args[3] == Py_None))) {
        PyObject *entry = recorder_entry(self, args, count);
        if (entry != NULL && PyObject_TypeCheck(entry, &site_type)) return site_begin((HotSite *)entry, NULL);
    }
    PyObject *slow = PyObject_GetAttrString((PyObject *)self, "_slow_call");
    PyObject *call = slow == NULL ? NULL : PyObject_Vectorcall(slow, args, (size_t)count, named);
    Py_XDECREF(slow);
    return call;
}

static int recorder_traverse(HotRecorder *self, visitproc visit, void *arg) {
    Py_VISIT(self->local);
    Py_VISIT(self->rpc);
    Py_VISIT(self->latest_entries);
    return 0;
}

static int recorder_clear(HotRecorder *self) {
    Py_CLEAR(self->local);
    Py_CLEAR(self->rpc);
    Py_CLEAR(self->latest_entries);
    return 0;
}

static void recorder_dealloc(HotRecorder *self) {
    PyObject_GC_UnTrack(self);
    recorder_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef recorder_methods[] = {
    {"call", AS_METHOD(recorder_call), METH_FASTCALL | METH_KEYWORDS,
     "Begin a call: use it with `with`. Arguments: method, schema=RPC, peer=\"\", trace_id=None."},
    {NULL},
};

static PyMemberDef recorder_members[] = {
    {"_local", T_OBJECT, offsetof(HotRecorder, local), READONLY, NULL},
    {NULL},
};

PyTypeObject recorder_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.hot._c.HotRecorder",
    .tp_doc = "Begins calls.",
    .tp_basicsize = sizeof(HotRecorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)recorder_init,
    .tp_dealloc = (destructor)recorder_dealloc,
    .tp_traverse = (traverseproc)recorder_traverse,
    .tp_clear = (inquiry)recorder_clear,
    .tp_methods = recorder_methods,
    .tp_members = recorder_members,
};
