/* HotTraffic: the messages of a socket. See python.py for its fields, and ipcbench/trace/adapters/messages.py for what
   happens to a message; what is here does the same for ordinary ones. */

#include "hot.h"

/* What messages.py gives: the state of the process's recorder, the schemas of its calls, and the server call of none. */
static PyObject *state, *send_schema, *exchange_schema, *receive_schema, *server_schema, *no_op_server;

static PyObject *recorder_name, *call_name, *exit_name, *traffic_name;

static int traffic_init(HotTraffic *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"method", "peer", "kind", "propagate", NULL};
    PyObject *method, *peer;
    int kind, propagate;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOip", names, &method, &peer, &kind, &propagate)) return -1;
    Py_XSETREF(self->method, Py_NewRef(method));
    Py_XSETREF(self->peer, Py_NewRef(peer));
    self->kind = kind;
    self->propagate = propagate != 0;
    return 0;
}

static inline bool is_timed(PyObject *call) {
    return PyObject_TypeCheck(call, &call_type) && !PyObject_TypeCheck(call, &no_op_type);
}

/* Return the call site of the next call, borrowed; NULL without an error if it is not known. */
static HotCallSite *latest_call_site(HotTraffic *self, PyObject *recorder, PyObject *schema) {
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (self->latest_recorder != recorder || self->latest_schema != schema || self->latest_thread != thread) {
        PyObject *args[] = {self->method, schema, self->peer};
        if (!PyObject_TypeCheck(recorder, &recorder_type)) return NULL;
        Py_XSETREF(self->latest_call_site, recorder_call_site((HotRecorder *)recorder, args));
        Py_XSETREF(self->latest_recorder, Py_NewRef(recorder));
        Py_XSETREF(self->latest_schema, Py_NewRef(schema));
        self->latest_thread = self->latest_call_site == NULL ? 0 : thread;
    }
    return (HotCallSite *)self->latest_call_site;
}

/* Begin a call of this traffic: a new reference. */
static PyObject *begin(HotTraffic *self, PyObject *schema, int64_t begin_ns) {
    PyObject *recorder = state == NULL ? NULL : PyObject_GetAttr(state, recorder_name), *call = NULL;
    if (recorder == NULL) return NULL;
    HotCallSite *call_site = latest_call_site(self, recorder, schema);
    if (call_site != NULL) {
        Py_INCREF(call_site); /* a budget's decision runs Python */
        call = call_site_begin(call_site, NULL);
        Py_DECREF(call_site);
    } else {
        PyObject *args[] = {recorder, self->method, schema, self->peer};
        call = PyObject_VectorcallMethod(call_name, args, 4, NULL);
    }
    Py_DECREF(recorder);
    if (call != NULL && is_timed(call)) ((HotCall *)call)->begin_ns = begin_ns;
    return call;
}

static inline void stamp(PyObject *call, int64_t at_ns) {
    HotCall *timed = (HotCall *)call;
    if (timed->marks <= MAX_STAGES) timed->ends_ns[timed->marks++] = at_ns;
}

static bool set_bytes(PyObject *call, PyObject **place, int64_t count) {
    PyObject *value = PyLong_FromLongLong(count);
    if (value != NULL) Py_XSETREF(*place, value);
    ((HotCall *)call)->sized = 1; /* none at all are known to be none */
    return value != NULL;
}

/* End a call as its `__exit__` does without an error; only a server's call does more than end. */
static bool end(PyObject *call, PyObject *schema) {
    PyObject *args[] = {call, Py_None, Py_None, Py_None}, *done = NULL;
    if (schema == server_schema) done = PyObject_VectorcallMethod(exit_name, args, 4, NULL);
    else if (!is_timed(call)) return true;
    else done = call_end_at((HotCall *)call, now_ns(), Py_None);
    Py_XDECREF(done);
    return done != NULL;
}

HotTraffic *ordinary_traffic(PyObject *target) {
    PyObject *traffic = PyObject_GenericGetAttr(target, traffic_name);
    if (traffic != NULL && PyObject_TypeCheck(traffic, &traffic_type) && ((HotTraffic *)traffic)->is_ordinary)
        return (HotTraffic *)traffic;
    Py_XDECREF(traffic);
    PyErr_Clear();
    return NULL;
}

PyObject *traffic_begin(HotTraffic *self) {
    if (self->kind != REPLIES) return begin(self, self->kind == REQUESTS ? exchange_schema : send_schema, now_ns());
    PyObject *call = Py_NewRef(self->serving == NULL ? no_op_server : self->serving);
    if (is_timed(call)) stamp(call, now_ns());
    return call;
}

bool traffic_end(HotTraffic *self, PyObject *call, int64_t sent_bytes) {
    if (is_timed(call)) {
        if (self->kind == REQUESTS) stamp(call, now_ns());
        if (!set_bytes(call, &((HotCall *)call)->sent_bytes, sent_bytes)) return false;
    }
    if (self->kind != REQUESTS) {
        if (self->kind == REPLIES) Py_XSETREF(self->serving, Py_NewRef(no_op_server));
        return end(call, self->kind == REPLIES ? server_schema : send_schema);
    }
    if (self->open != NULL && self->open != Py_None) {
        PyObject *closed = PyObject_CallMethod((PyObject *)self, "close", NULL);
        if (closed == NULL) return false;
        Py_DECREF(closed);
    }
    Py_XSETREF(self->open, Py_NewRef(call));
    return true;
}

PyObject *traffic_request(HotTraffic *self, int64_t recv_bytes) {
    PyObject *call = begin(self, server_schema, self->received_ns = now_ns());
    if (call == NULL || !is_timed(call)) return call;
    stamp(call, now_ns());
    if (!set_bytes(call, &((HotCall *)call)->recv_bytes, recv_bytes)) Py_CLEAR(call);
    return call;
}

bool traffic_reply(HotTraffic *self, PyObject *call, int64_t begin_ns, int64_t sent_bytes) {
    if (!is_timed(call)) return true;
    stamp(call, begin_ns);
    if (!set_bytes(call, &((HotCall *)call)->sent_bytes, sent_bytes)) return false;
    PyObject *done = call_end_at((HotCall *)call, now_ns(), Py_None);
    Py_XDECREF(done);
    return done != NULL;
}

bool traffic_arrive(HotTraffic *self, int64_t asked_ns, int64_t recv_bytes) {
    bool done = true;
    self->received_ns = now_ns();
    if (self->kind == REQUESTS) {
        PyObject *call = self->open;
        self->open = NULL;
        if (call == NULL || call == Py_None) return true;
        done = (!is_timed(call) || set_bytes(call, &((HotCall *)call)->recv_bytes, recv_bytes)) && end(call, exchange_schema);
        Py_DECREF(call);
        return done;
    }
    if (self->kind == REPLIES) {
        PyObject *call = traffic_request(self, recv_bytes);
        if (call == NULL) return false;
        Py_XSETREF(self->serving, Py_NewRef(is_timed(call) ? call : no_op_server));
        Py_DECREF(call);
        return true;
    }
    PyObject *call = begin(self, receive_schema, asked_ns);
    done = call != NULL && (!is_timed(call) || set_bytes(call, &((HotCall *)call)->recv_bytes, recv_bytes)) &&
           end(call, receive_schema);
    Py_XDECREF(call);
    return done;
}

bool traffic_sent(HotTraffic *self, int64_t begin_ns, int64_t sent_bytes) {
    PyObject *call = begin(self, send_schema, begin_ns);
    bool done = call != NULL && (!is_timed(call) || set_bytes(call, &((HotCall *)call)->sent_bytes, sent_bytes)) && end(call, send_schema);
    Py_XDECREF(call);
    return done;
}

void traffic_failed(HotTraffic *self, PyObject *call) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    PyObject *told = call == NULL ? PyObject_CallMethod((PyObject *)self, "failed", "O", error)
                                  : PyObject_CallMethod((PyObject *)self, "fail", "OO", call, error);
    if (told == NULL) PyErr_Clear();
    Py_XDECREF(told);
    PyErr_Restore(kind, error, trace);
}

/* set_traffic(state, send_schema, exchange_schema, receive_schema, server_schema, no_op_server) */
static PyObject *set_traffic(PyObject *module, PyObject *args) {
    PyObject **places[] = {&state, &send_schema, &exchange_schema, &receive_schema, &server_schema, &no_op_server};
    const int wanted = sizeof places / sizeof *places;
    if (PyTuple_GET_SIZE(args) != wanted) return PyErr_Format(PyExc_TypeError, "it takes %d arguments", wanted);
    if (recorder_name == NULL && ((recorder_name = PyUnicode_InternFromString("recorder")) == NULL ||
                                  (call_name = PyUnicode_InternFromString("call")) == NULL ||
                                  (exit_name = PyUnicode_InternFromString("__exit__")) == NULL ||
                                  (traffic_name = PyUnicode_InternFromString("_ipcbench_traffic")) == NULL))
        return NULL;
    for (int i = 0; i < wanted; i++) Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(args, i)));
    Py_RETURN_NONE;
}

static int traffic_traverse(HotTraffic *self, visitproc visit, void *arg) {
    for (size_t i = 0; i < sizeof self->objects / sizeof *self->objects; i++) Py_VISIT(self->objects[i]);
    return 0;
}

static int traffic_clear(HotTraffic *self) {
    for (size_t i = 0; i < sizeof self->objects / sizeof *self->objects; i++) Py_CLEAR(self->objects[i]);
    return 0;
}

static void traffic_dealloc(HotTraffic *self) {
    PyObject_GC_UnTrack(self);
    traffic_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#define OBJECT(name, field) {name, T_OBJECT, offsetof(HotTraffic, field), 0, NULL}
#define NUMBER(name) {#name, T_LONGLONG, offsetof(HotTraffic, name), 0, NULL}
#define FLAG(name) {#name, T_BOOL, offsetof(HotTraffic, name), 0, NULL}

static PyMemberDef traffic_members[] = {
    OBJECT("method", method), OBJECT("peer", peer), OBJECT("_open", open), OBJECT("_serving", serving),
    OBJECT("_carried", carried), OBJECT("_context", context), OBJECT("sending", sending), OBJECT("pairs", pairs),
    OBJECT("sent_frames", sent_frames), OBJECT("received_frames", received_frames), OBJECT("pending", pending),
    NUMBER(asked_ns), NUMBER(begun_ns), NUMBER(received_ns), NUMBER(sent_bytes), NUMBER(recv_bytes),
    {"kind", T_INT, offsetof(HotTraffic, kind), 0, NULL},
    {"protocols", T_INT, offsetof(HotTraffic, protocols), 0, NULL},
    FLAG(propagate), FLAG(is_ordinary), FLAG(is_partial),
    {NULL},
};

PyTypeObject traffic_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotTraffic",
    .tp_doc = "The messages of a socket, queue or connection.",
    .tp_basicsize = sizeof(HotTraffic),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)traffic_init,
    .tp_dealloc = (destructor)traffic_dealloc,
    .tp_traverse = (traverseproc)traffic_traverse,
    .tp_clear = (inquiry)traffic_clear,
    .tp_members = traffic_members,
};

static PyMethodDef set_definition = {"set_traffic", set_traffic, METH_VARARGS, NULL};

int add_traffic_functions(PyObject *module) { return add_methods(module, NULL, NULL, &set_definition); }
