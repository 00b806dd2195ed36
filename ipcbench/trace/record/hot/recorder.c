/* HotRecorder: beginning a call. See python.py. */

#include "hot.h"

static int recorder_init(HotRecorder *self, PyObject *args, PyObject *kwargs) {
    PyObject *local, *rpc;
    if (!PyArg_ParseTuple(args, "OO", &local, &rpc)) return -1;
    Py_XSETREF(self->local, Py_NewRef(local));
    Py_XSETREF(self->rpc, Py_NewRef(rpc));
    Py_CLEAR(self->latest_entries);
    return 0;
}

/* Return the entries of this thread, a new reference; NULL without an error if it has none. */
static PyObject *recorder_entries(HotRecorder *self) {
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (self->local == NULL) return NULL;
    if (self->latest_entries != NULL && self->latest_thread == thread) return Py_NewRef(self->latest_entries);
    PyObject *entries = PyObject_GetAttrString(self->local, "entries");
    if (entries == NULL || !PyDict_Check(entries)) {
        PyErr_Clear();
        Py_XDECREF(entries);
        return NULL;
    }
    PyObject *before = self->latest_entries;
    self->latest_entries = Py_NewRef(entries);
    self->latest_thread = thread;
    Py_XDECREF(before);
    return entries;
}

/* Return the key of the call site's entry, a new reference; NULL if there is none. */
static PyObject *recorder_key(HotRecorder *self, PyObject *const *args, Py_ssize_t count) {
    if (count == 1) return Py_NewRef(args[0]);
    int has_peer = count > 2 ? PyObject_IsTrue(args[2]) : 0;
    if (args[1] == self->rpc && has_peer == 0) return Py_NewRef(args[0]);
    PyObject *id = has_peer < 0 ? NULL : PyLong_FromVoidPtr(args[1]);
    PyObject *peer = count > 2 ? Py_NewRef(args[2]) : PyUnicode_New(0, 0);
    PyObject *key = id == NULL || peer == NULL ? NULL : PyTuple_Pack(3, args[0], id, peer);
    Py_XDECREF(id);
    Py_XDECREF(peer);
    return key;
}

/* Return the call site's entry, a new reference; NULL without an error if there is none. */
static PyObject *recorder_entry(HotRecorder *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *entries = recorder_entries(self);
    PyObject *key = entries == NULL ? NULL : recorder_key(self, args, count);
    PyObject *entry = key == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(entries, key));
    Py_XDECREF(key);
    Py_XDECREF(entries);
    PyErr_Clear(); /* the slow path raises what is wrong with the arguments */
    return entry;
}

PyObject *recorder_call_site(HotRecorder *self, PyObject *const *args) {
    PyObject *entry = recorder_entry(self, args, 3);
    if (entry != NULL && !PyObject_TypeCheck(entry, &call_site_type)) Py_CLEAR(entry);
    return entry;
}

/* call(method, schema, peer, trace_id): see python.py. */
static PyObject *recorder_call(HotRecorder *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    if (named == NULL && 1 <= count && (count < 4 || (count == 4 && args[3] == Py_None))) {
        PyObject *entry = recorder_entry(self, args, count);
        if (entry != NULL) {
            bool is_call_site = Py_IS_TYPE(entry, self->call_site_kind) || PyObject_TypeCheck(entry, &call_site_type);
            PyObject *call = is_call_site ? call_site_begin((HotCallSite *)entry, NULL) : NULL;
            if (is_call_site && !Py_IS_TYPE(entry, self->call_site_kind))
                Py_XSETREF(self->call_site_kind, (PyTypeObject *)Py_NewRef(Py_TYPE(entry)));
            Py_DECREF(entry);
            if (call != NULL || PyErr_Occurred()) return call;
        }
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
    Py_VISIT(self->call_site_kind);
    return 0;
}

static int recorder_clear(HotRecorder *self) {
    Py_CLEAR(self->local);
    Py_CLEAR(self->rpc);
    Py_CLEAR(self->latest_entries);
    Py_CLEAR(self->call_site_kind);
    return 0;
}

static void recorder_dealloc(HotRecorder *self) {
    PyObject_GC_UnTrack(self);
    recorder_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef recorder_methods[] = {
    {"call", AS_METHOD(recorder_call), METH_FASTCALL | METH_KEYWORDS,
     "call($self, method, schema=..., peer='', trace_id=None)\n--\n\nBegin a call: use it with `with`."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL},
};

static PyMemberDef recorder_members[] = {
    {"_local", T_OBJECT, offsetof(HotRecorder, local), READONLY, NULL},
    {NULL},
};

PyTypeObject recorder_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotRecorder",
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
