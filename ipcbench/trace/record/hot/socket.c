/* Sending and receiving an ordinary message on a recorded ZeroMQ socket: one frame, without a context. See
   ipcbench/trace/adapters/zmq_.py, whose functions do the same for every other message. */

#include "hot.h"

enum { ONE_WAY, REQUESTS, REPLIES, SNDMORE = 2 }; /* as in messages.py, and as in zmq.h */

/* What zmq_.py gives: its own functions, the state of the process's recorder, and the schemas of its calls. */
static PyObject *slow_send, *slow_receive, *state, *send_schema, *exchange_schema, *receive_schema, *server_schema,
    *no_op_server;

static struct { const char *text; PyObject *name; } names[] = {
    {"_traffic"}, {"_raw_send"}, {"_raw_recv"}, {"is_ordinary"}, {"kind"}, {"method"}, {"peer"}, {"_open"}, {"_serving"},
    {"recorder"}, {"call"}, {"__exit__"}, {"close"}, {"failed"}, {"more"}, {"bytes"}, {"asked_ns"}, {"received_ns"},
    {"received_frame"},
};
enum { TRAFFIC, RAW_SEND, RAW_RECV, IS_ORDINARY, KIND, METHOD, PEER, OPEN, SERVING, RECORDER, CALL, EXIT, CLOSE, FAILED,
       MORE, BYTES, ASKED_NS, RECEIVED_NS, RECEIVED_FRAME };

static PyObject *get(PyObject *object, int name) { return PyObject_GetAttr(object, names[name].name); }

/* Return whether an attribute is true; an error counts as false. */
static bool is_set(PyObject *object, int name) {
    PyObject *value = get(object, name);
    bool is_true = value == Py_True;
    Py_XDECREF(value);
    PyErr_Clear();
    return is_true;
}

/* Begin a call of this socket: a new reference. */
static PyObject *begin(PyObject *traffic, PyObject *schema, int64_t begin_ns) {
    PyObject *recorder = get(state, RECORDER), *method = get(traffic, METHOD), *peer = get(traffic, PEER), *call = NULL;
    if (recorder != NULL && method != NULL && peer != NULL) {
        PyObject *args[] = {recorder, method, schema, peer};
        call = PyObject_VectorcallMethod(names[CALL].name, args, 4, NULL);
    }
    if (call != NULL && PyObject_TypeCheck(call, &call_type) && !PyObject_TypeCheck(call, &no_op_type))
        ((HotCall *)call)->begin_ns = begin_ns;
    Py_XDECREF(recorder);
    Py_XDECREF(method);
    Py_XDECREF(peer);
    return call;
}

static bool is_timed(PyObject *call) {
    return PyObject_TypeCheck(call, &call_type) && !PyObject_TypeCheck(call, &no_op_type);
}

static void stamp(PyObject *call, int64_t at_ns) {
    HotCall *timed = (HotCall *)call;
    if (timed->marks <= MAX_STAGES) timed->ends_ns[timed->marks++] = at_ns;
}

static void set_bytes(PyObject **place, Py_ssize_t count) {
    PyObject *value = PyLong_FromSsize_t(count);
    if (value != NULL) Py_XSETREF(*place, value);
    PyErr_Clear();
}

/* End a call as its `__exit__` does without an error. */
static bool end(PyObject *call) {
    PyObject *args[] = {call, Py_None, Py_None, Py_None};
    PyObject *done = PyObject_VectorcallMethod(names[EXIT].name, args, 4, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

/* Note that a message was sent, as Traffic.end does. */
static bool sent(PyObject *traffic, long kind, PyObject *call, Py_ssize_t count) {
    if (is_timed(call)) {
        if (kind == REQUESTS) stamp(call, now_ns());
        set_bytes(&((HotCall *)call)->sent_bytes, count);
    }
    if (kind != REQUESTS) {
        bool done = end(call);
        return done && (kind != REPLIES || PyObject_SetAttr(traffic, names[SERVING].name, no_op_server) == 0);
    }
    PyObject *before = get(traffic, OPEN);
    if (before != NULL && before != Py_None) Py_XDECREF(PyObject_CallMethodNoArgs(traffic, names[CLOSE].name));
    Py_XDECREF(before);
    return !PyErr_Occurred() && PyObject_SetAttr(traffic, names[OPEN].name, call) == 0;
}

/* Return the call of a message that is about to be sent, as Traffic.begin does. */
static PyObject *sending(PyObject *traffic, long kind) {
    if (kind != REPLIES) return begin(traffic, kind == REQUESTS ? exchange_schema : send_schema, now_ns());
    PyObject *call = get(traffic, SERVING);
    if (call != NULL && is_timed(call)) stamp(call, now_ns());
    return call;
}

static long kind_of(PyObject *traffic) {
    PyObject *kind = get(traffic, KIND);
    long value = kind == NULL ? -1 : PyLong_AsLong(kind);
    Py_XDECREF(kind);
    PyErr_Clear();
    return value;
}

/* Return the traffic of a socket whose next message may be ordinary, a new reference; else NULL. */
static PyObject *ordinary(PyObject *socket) {
    PyObject *traffic = get(socket, TRAFFIC);
    if (traffic != NULL && traffic != Py_None && is_set(traffic, IS_ORDINARY)) return traffic;
    Py_XDECREF(traffic);
    PyErr_Clear();
    return NULL;
}

/* send(socket, data, flags=0, copy=True, track=False, **kwargs) */
static PyObject *socket_send(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    bool is_plain = named == NULL && count >= 2 && count <= 5 && PyBytes_CheckExact(args[1]) &&
                    (count == 2 || (PyLong_Check(args[2]) && (PyLong_AsLong(args[2]) & SNDMORE) == 0));
    PyErr_Clear();
    PyObject *traffic = is_plain ? ordinary(args[0]) : NULL;
    long kind = traffic == NULL ? -1 : kind_of(traffic);
    PyObject *call = kind < 0 || kind > REPLIES ? NULL : sending(traffic, kind);
    if (call == NULL) {
        PyErr_Clear();
        Py_XDECREF(traffic);
        return PyObject_Vectorcall(slow_send, args, (size_t)count, named);
    }
    PyObject *raw = get(args[0], RAW_SEND), *result = NULL;
    PyObject *given[] = {args[0], args[1], count > 2 ? args[2] : zero, count > 3 ? args[3] : Py_True,
                         count > 4 ? args[4] : Py_False};
    if (raw != NULL) result = PyObject_Vectorcall(raw, given, 5, NULL);
    if (result == NULL) {
        PyObject *kind_of_error, *error, *trace;
        PyErr_Fetch(&kind_of_error, &error, &trace);
        PyErr_NormalizeException(&kind_of_error, &error, &trace);
        PyObject *told = PyObject_CallMethodObjArgs(traffic, names[FAILED].name, call, error, NULL);
        if (told == NULL) PyErr_Clear();
        Py_XDECREF(told);
        PyErr_Restore(kind_of_error, error, trace);
    } else if (!sent(traffic, kind, call, PyBytes_GET_SIZE(args[1]))) {
        PyErr_Clear();
    }
    Py_XDECREF(raw);
    Py_DECREF(call);
    Py_DECREF(traffic);
    return result;
}

static void set_time(PyObject *traffic, int name, int64_t at_ns) {
    PyObject *value = PyLong_FromLongLong(at_ns);
    if (value == NULL || PyObject_SetAttr(traffic, names[name].name, value) < 0) PyErr_Clear();
    Py_XDECREF(value);
}

/* Record a whole message that has arrived, as Traffic.arrive does. */
static void arrived(PyObject *traffic, long kind, Py_ssize_t count, int64_t asked_ns) {
    int64_t received_ns = now_ns();
    set_time(traffic, RECEIVED_NS, received_ns);
    if (kind == REQUESTS) {
        PyObject *call = get(traffic, OPEN);
        if (call != NULL && call != Py_None && PyObject_SetAttr(traffic, names[OPEN].name, Py_None) == 0) {
            if (is_timed(call)) set_bytes(&((HotCall *)call)->recv_bytes, count);
            end(call);
        }
        Py_XDECREF(call);
    } else {
        PyObject *call = begin(traffic, kind == REPLIES ? server_schema : receive_schema,
                               kind == REPLIES ? received_ns : asked_ns);
        if (call != NULL && is_timed(call)) set_bytes(&((HotCall *)call)->recv_bytes, count);
        if (call != NULL && kind == REPLIES) {
            if (is_timed(call)) stamp(call, now_ns());
            PyObject_SetAttr(traffic, names[SERVING].name, is_timed(call) ? call : no_op_server);
        } else if (call != NULL) {
            end(call);
        }
        Py_XDECREF(call);
    }
    PyErr_Clear();
}

/* recv(socket, flags=0, copy=True, track=False) */
static PyObject *socket_receive(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    bool is_plain = named == NULL && count >= 1 && count <= 4 && (count < 3 || PyBool_Check(args[2]));
    PyObject *traffic = is_plain ? ordinary(args[0]) : NULL;
    long kind = traffic == NULL ? -1 : kind_of(traffic);
    if (kind < 0 || kind > REPLIES) {
        Py_XDECREF(traffic);
        return PyObject_Vectorcall(slow_receive, args, (size_t)count, named);
    }
    int64_t asked_ns = now_ns();
    PyObject *raw = get(args[0], RAW_RECV), *flags = count > 1 ? args[1] : zero, *frame = NULL, *result = NULL;
    PyObject *given[] = {args[0], flags, Py_False, count > 3 ? args[3] : Py_False};
    if (raw != NULL) frame = PyObject_Vectorcall(raw, given, 4, NULL);
    Py_XDECREF(raw);
    if (frame != NULL) {
        PyObject *more = get(frame, MORE);
        Py_ssize_t size = more == NULL ? -1 : PyObject_Size(frame);
        if (size >= 0 && more == Py_False) {
            arrived(traffic, kind, size, asked_ns);
        } else if (size >= 0) {
            set_time(traffic, ASKED_NS, asked_ns);
            PyObject *told = PyObject_CallMethodObjArgs(traffic, names[RECEIVED_FRAME].name, args[0], frame, flags, NULL);
            if (told == NULL) size = -1;
            Py_XDECREF(told);
        }
        if (size >= 0) result = count > 2 && args[2] == Py_False ? Py_NewRef(frame) : get(frame, BYTES);
        Py_XDECREF(more);
        Py_DECREF(frame);
    }
    Py_DECREF(traffic);
    return result;
}

/* set_socket_functions(send, receive, state, send_schema, exchange_schema, receive_schema, server_schema, no_op) */
static PyObject *set_functions(PyObject *module, PyObject *args) {
    PyObject **places[] = {&slow_send, &slow_receive, &state, &send_schema, &exchange_schema, &receive_schema,
                           &server_schema, &no_op_server};
    const int wanted = sizeof places / sizeof *places;
    if (PyTuple_GET_SIZE(args) != wanted) return PyErr_Format(PyExc_TypeError, "it takes %d arguments", wanted);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].name == NULL && (names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) return NULL;
    for (int i = 0; i < wanted; i++) Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(args, i)));
    Py_RETURN_NONE;
}

static PyMethodDef send_definition = {"send", AS_METHOD(socket_send), METH_FASTCALL | METH_KEYWORDS,
                                      "send(self, data, flags=0, copy=True, track=False, routing_id=None, group=None)\n--\n\n"
                                      "Send a frame, and record the message that it ends."};
static PyMethodDef receive_definition = {"recv", AS_METHOD(socket_receive), METH_FASTCALL | METH_KEYWORDS,
                                         "recv(self, flags=0, copy=True, track=False)\n--\n\n"
                                         "Receive a frame, and record the message that it ends."};
static PyMethodDef set_definition = {"set_socket_functions", set_functions, METH_VARARGS, NULL};

/* Add the functions to the module, those of sockets so that a class has them as methods. */
int add_socket_functions(PyObject *module) {
    struct { const char *name; PyMethodDef *definition; bool is_method; } all[] = {
        {"socket_send", &send_definition, true}, {"socket_recv", &receive_definition, true},
        {"set_socket_functions", &set_definition, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        PyObject *function = PyCFunction_New(all[i].definition, NULL);
        PyObject *added = function != NULL && all[i].is_method ? PyInstanceMethod_New(function) : Py_XNewRef(function);
        Py_XDECREF(function);
        if (added == NULL || PyModule_AddObjectRef(module, all[i].name, added) < 0) {
            Py_XDECREF(added);
            return -1;
        }
        Py_DECREF(added);
    }
    return 0;
}
