/* Sending and receiving on a recorded ZeroMQ socket: messages of any number of frames, without a context. See
   ipcbench/trace/adapters/zmq_.py, whose functions do the same for every other message. */

#include "hot.h"

enum { SNDMORE = 2, RCVMORE = 13 }; /* as in zmq.h */

enum { LONGEST_COPY = 255 }; /* bytes: identities and delimiters */

/* What zmq_.py gives: its own functions. */
static PyObject *slow_send, *slow_receive, *rcvmore;

static struct { const char *text; PyObject *name; } names[] = {
    {"_ipcbench_raw"}, {"_ipcbench_send"}, {"_ipcbench_recv"}, {"_ipcbench_get"}, {"send"}, {"recv"}, {"send_multipart"}, {"recv_multipart"},
    {"more"},
};
enum { RAW, RAW_SEND, RAW_RECV, RAW_GET, SEND, RECV, SEND_MULTIPART, RECV_MULTIPART, MORE };

/* Sockets have a `__getattr__` in Python for options, which need not be looked for. */
static PyObject *get(PyObject *object, int name) { return PyObject_GenericGetAttr(object, names[name].name); }

static inline bool is_paired(HotTraffic *traffic) { return traffic->pairs != NULL && traffic->pairs != Py_None; }

/* Return the size of a frame in bytes; 0 if it is none, and sending it fails. */
static Py_ssize_t size_of(PyObject *data) {
    Py_buffer view;
    if (PyBytes_CheckExact(data)) return PyBytes_GET_SIZE(data);
    if (PyObject_GetBuffer(data, &view, PyBUF_STRIDED_RO) < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t size = view.len;
    PyBuffer_Release(&view);
    return size;
}

/* Return by which protocol a message may have ids, ANY if correlate.py must tell; 0 if it has none. */
static int protocol_of(HotTraffic *traffic, PyObject *frames) {
    static const char delimiter[] = "<IDS|MSG>";
    Py_ssize_t count = PyList_GET_SIZE(frames);
    if (traffic->protocols & ANY) return ANY;
    for (Py_ssize_t i = 0; traffic->protocols & JUPYTER && i < count && i < 8; i++) {
        PyObject *frame = PyList_GET_ITEM(frames, i);
        if (size_of(frame) != sizeof delimiter - 1) continue;
        if (!PyBytes_CheckExact(frame) || memcmp(PyBytes_AS_STRING(frame), delimiter, sizeof delimiter - 1) == 0) return ANY;
    }
    return traffic->protocols & ENVELOPE && count > 2 && size_of(PyList_GET_ITEM(frames, 1)) == 0 ? ENVELOPE : 0;
}

static bool forget(PyObject *frames) { return PyList_SetSlice(frames, 0, PyList_GET_SIZE(frames), NULL) == 0; }

/* Return the identity in an envelope, a new reference, and forget the frames. */
static PyObject *take_identity(PyObject *frames) {
    PyObject *identity = PyBytes_FromObject(PyList_GET_ITEM(frames, 0));
    if (!forget(frames)) Py_CLEAR(identity);
    return identity;
}

/* Let correlate.py record a whole message of a paired socket. */
static bool pair(HotTraffic *traffic, const char *method, PyObject *frames, int64_t at_ns, int64_t count) {
    PyObject *done = PyObject_CallMethod(traffic->pairs, method, "OLL", frames, (long long)at_ns, (long long)count);
    Py_XDECREF(done);
    return done != NULL;
}

/* Record a whole message of a paired socket that was sent: what does not answer an envelope goes to nobody known. */
static bool pair_sent(HotTraffic *traffic, int64_t count) {
    int protocol = protocol_of(traffic, traffic->sent_frames);
    if (protocol == ANY) return pair(traffic, "sent", traffic->sent_frames, traffic->begun_ns, count);
    PyObject *identity = protocol == ENVELOPE ? take_identity(traffic->sent_frames) : NULL;
    if (identity == NULL && (PyErr_Occurred() || !forget(traffic->sent_frames))) return false;
    PyObject *call = identity == NULL ? Py_NewRef(Py_None) : PyObject_CallMethod(traffic->pairs, "take", "O", identity);
    Py_XDECREF(identity);
    if (call == NULL) return false;
    bool done = call == Py_None ? traffic_sent(traffic, traffic->begun_ns, count)
                                : traffic_reply(traffic, call, traffic->begun_ns, count);
    Py_DECREF(call);
    return done;
}

/* Record a whole message of a paired socket that has arrived: an envelope is a request. */
static bool pair_received(HotTraffic *traffic, int64_t count) {
    int protocol = protocol_of(traffic, traffic->received_frames);
    if (protocol == ANY) return pair(traffic, "received", traffic->received_frames, traffic->asked_ns, count);
    if (protocol == 0) return forget(traffic->received_frames) && traffic_arrive(traffic, traffic->asked_ns, count);
    PyObject *identity = take_identity(traffic->received_frames), *call = NULL, *kept = NULL;
    if (identity != NULL) call = traffic_request(traffic, count);
    if (call != NULL) kept = PyObject_CallMethod(traffic->pairs, "keep_envelope", "OO", identity, call);
    Py_XDECREF(identity);
    Py_XDECREF(call);
    Py_XDECREF(kept);
    return kept != NULL;
}

/* Record a message whose last frame was sent; the call is that of an unpaired socket. */
static bool sent(HotTraffic *traffic, PyObject *call) {
    int64_t count = traffic->sent_bytes;
    traffic->sent_bytes = 0;
    return is_paired(traffic) ? pair_sent(traffic, count) : traffic_end(traffic, call, count);
}

/* Keep a frame for the pairing of its message; a short one as it is now, since its buffer may be used again. */
static bool keep_sent(PyObject *frames, PyObject *data, Py_ssize_t size) {
    PyObject *kept = PyBytes_CheckExact(data) || size > LONGEST_COPY ? Py_NewRef(data) : PyBytes_FromObject(data);
    if (kept == NULL) {
        PyErr_Clear();
        kept = Py_NewRef(data);
    }
    bool done = PyList_Append(frames, kept) == 0;
    Py_DECREF(kept);
    return done;
}

/* Send a frame by the socket's own method: given are the socket, the data, the flags, and whether to copy and to track. A
   signal handler may send on the same socket meanwhile, so nothing of this message stays in the traffic. */
static PyObject *send_frame(HotTraffic *traffic, PyObject *raw, PyObject *const *given, bool more) {
    PyObject *call = NULL;
    const bool paired = is_paired(traffic);
    if (paired) {
        if (PyList_GET_SIZE(traffic->sent_frames) == 0) traffic->begun_ns = now_ns();
    } else {
        call = traffic->sending;
        traffic->sending = NULL;
        if (call == Py_None) Py_CLEAR(call);
        if (call == NULL && (call = traffic_begin(traffic)) == NULL) return NULL;
    }
    const Py_ssize_t size = size_of(given[1]);
    const int64_t before = traffic->sent_bytes;
    if (!paired) traffic->sent_bytes = 0;
    PyObject *result = PyObject_Vectorcall(raw, given, 5, NULL);
    if (!paired) traffic->sent_bytes = before;
    if (result == NULL) {
        if (!paired) Py_XSETREF(traffic->sending, Py_NewRef(call));
        traffic_failed(traffic, NULL);
        Py_XDECREF(call);
        return NULL;
    }
    traffic->sent_bytes += size;
    if (paired && !keep_sent(traffic->sent_frames, given[1], size)) Py_CLEAR(result);
    if (result != NULL && more && !paired) Py_XSETREF(traffic->sending, Py_NewRef(call));
    if (result != NULL && !more && !sent(traffic, call)) Py_CLEAR(result);
    Py_XDECREF(call);
    return result;
}

/* send(socket, data, flags=0, copy=True, track=False, **kwargs) */
static PyObject *socket_send(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    static const char *const known[] = {"self", "data", "flags", "copy", "track"};
    PyObject *given[] = {NULL, NULL, zero, Py_True, Py_False};
    bool is_plain = find_arguments(args, count, named, known, 5, given) && given[0] != NULL && given[1] != NULL &&
                    PyLong_Check(given[2]) && PyObject_CheckBuffer(given[1]);
    long flags = is_plain ? PyLong_AsLong(given[2]) : -1;
    HotTraffic *traffic = flags >= 0 ? ordinary_traffic(given[0]) : NULL;
    PyErr_Clear();
    if (traffic == NULL) return PyObject_Vectorcall(slow_send, args, (size_t)count, named);
    PyObject *raw = get(given[0], RAW_SEND), *result = raw == NULL ? NULL : send_frame(traffic, raw, given, flags & SNDMORE);
    Py_XDECREF(raw);
    Py_DECREF(traffic);
    return result;
}

/* Return whether a socket sends or receives frames by the function that is here, and not by one of its own or of a
   subclass. */
static bool has_own(PyObject *socket, int name, PyCFunction function) {
    PyObject *found = get(socket, name), *inner = found != NULL && PyMethod_Check(found) ? PyMethod_GET_FUNCTION(found) : NULL;
    bool is_own = inner != NULL && PyCFunction_Check(inner) && PyCFunction_GET_FUNCTION(inner) == function;
    Py_XDECREF(found);
    PyErr_Clear();
    return is_own;
}

/* Let the class of the socket do what it does without recording: it goes frame by frame. */
static PyObject *frame_by_frame(int name, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    if (count < 1) return PyErr_Format(PyExc_TypeError, "%s is called without a socket", names[name].text);
    PyObject *raw = get(args[0], RAW), *function = raw == NULL ? NULL : get(raw, name);
    PyObject *result = function == NULL ? NULL : PyObject_Vectorcall(function, args, (size_t)count, named);
    Py_XDECREF(raw);
    Py_XDECREF(function);
    return result;
}

static bool is_buffer(PyObject *data) {
    Py_buffer view;
    if (PyBytes_CheckExact(data) || PyMemoryView_Check(data)) return true; /* pyzmq does not look at these either */
    if (PyObject_GetBuffer(data, &view, PyBUF_FULL_RO) < 0) return false;
    PyBuffer_Release(&view);
    return true;
}

/* Return the frames of a message, a new reference; NULL if they are not all buffers, which the slow way tells. */
static PyObject *frames_of(PyObject *message) {
    if (!PyList_CheckExact(message) && !PyTuple_CheckExact(message)) return NULL;
    PyObject *frames = PySequence_Tuple(message);
    Py_ssize_t count = frames == NULL ? 0 : PyTuple_GET_SIZE(frames), buffers = 0;
    while (buffers < count && is_buffer(PyTuple_GET_ITEM(frames, buffers))) buffers++;
    if (count == 0 || buffers < count) Py_CLEAR(frames);
    return frames;
}

/* send_multipart(socket, msg_parts, flags=0, copy=True, track=False, **kwargs) */
static PyObject *socket_send_multipart(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    static const char *const known[] = {"self", "msg_parts", "flags", "copy", "track"};
    PyObject *given[] = {NULL, NULL, zero, Py_True, Py_False}, *frames = NULL, *more = NULL, *raw = NULL, *result = NULL;
    bool is_plain = find_arguments(args, count, named, known, 5, given) && given[0] != NULL && given[1] != NULL &&
                    PyLong_Check(given[2]) && has_own(given[0], SEND, AS_METHOD(socket_send));
    long flags = is_plain ? PyLong_AsLong(given[2]) : -1;
    HotTraffic *traffic = flags >= 0 ? ordinary_traffic(given[0]) : NULL;
    if (traffic == NULL || (frames = frames_of(given[1])) == NULL) {
        PyErr_Clear();
        Py_XDECREF(traffic);
        return frame_by_frame(SEND_MULTIPART, args, count, named);
    }
    more = PyLong_FromLong(flags | SNDMORE);
    raw = more == NULL ? NULL : get(given[0], RAW_SEND);
    PyObject *last_flags = given[2];
    for (Py_ssize_t i = 0, last = PyTuple_GET_SIZE(frames) - 1; raw != NULL && i <= last; i++) {
        given[1] = PyTuple_GET_ITEM(frames, i);
        given[2] = i < last ? more : last_flags;
        Py_XSETREF(result, send_frame(traffic, raw, given, i < last || flags & SNDMORE));
        if (result == NULL) break;
    }
    Py_XDECREF(raw);
    Py_XDECREF(more);
    Py_DECREF(frames);
    Py_DECREF(traffic);
    return result;
}

/* Count a frame that has arrived, and record the message that it ends. */
static bool received(HotTraffic *traffic, PyObject *frame, Py_ssize_t size, bool more) {
    traffic->recv_bytes += size;
    traffic->is_partial = more;
    if (is_paired(traffic) && PyList_Append(traffic->received_frames, frame) < 0) return false;
    if (more) return true;
    int64_t count = traffic->recv_bytes;
    traffic->recv_bytes = 0;
    if (is_paired(traffic)) return pair_received(traffic, count);
    return traffic_arrive(traffic, traffic->asked_ns, count);
}

/* Return whether more frames follow the one that was received. An exception of a signal handler stays set. */
static bool follows(PyObject *socket, PyObject *raw_get, PyObject *result, bool copy) {
    PyObject *given[] = {socket, rcvmore}, *more = NULL, *kind = NULL, *error = NULL, *trace = NULL;
    for (int tries = 0; tries < 2 && more == NULL; tries++) { /* asking again interrupts nobody twice */
        if (kind == NULL) PyErr_Fetch(&kind, &error, &trace);
        else PyErr_Clear();
        more = copy ? PyObject_Vectorcall(raw_get, given, 2, NULL) : get(result, MORE);
    }
    bool is_set = more != NULL && PyObject_IsTrue(more) == 1;
    Py_XDECREF(more);
    if (kind != NULL) PyErr_Restore(kind, error, trace);
    return is_set;
}

/* Begin with a message; what is left of one whose receiving was interrupted is no part of it. */
static bool receive_anew(HotTraffic *traffic) {
    traffic->asked_ns = now_ns();
    traffic->recv_bytes = 0;
    return !is_paired(traffic) || PyList_GET_SIZE(traffic->received_frames) == 0 || forget(traffic->received_frames);
}

/* Receive a frame by the socket's own method: given are the socket, the flags, and whether to copy and to track. One that
   is not copied knows whether more follow; but to let go of it would swallow the exceptions of signal handlers. */
static PyObject *receive_frame(HotTraffic *traffic, PyObject *raw, PyObject *raw_get, PyObject *const *given, bool copy) {
    PyObject *kind, *error, *trace;
    if (!traffic->is_partial && !receive_anew(traffic)) return NULL;
    PyObject *result = PyObject_Vectorcall(raw, given, 4, NULL);
    if (result == NULL) { /* a handler of a signal may have raised after the frame was taken: it is lost */
        traffic->is_partial = traffic->is_partial && follows(given[0], raw_get, NULL, true);
        return NULL;
    }
    bool more = follows(given[0], raw_get, result, copy);
    PyErr_Fetch(&kind, &error, &trace);
    Py_ssize_t size = PyObject_Size(result);
    if (size < 0 || !received(traffic, result, size, more)) Py_CLEAR(result);
    if (kind != NULL) {
        PyErr_Clear();
        PyErr_Restore(kind, error, trace);
        Py_CLEAR(result);
    }
    return result;
}

static const char *const receive_known[] = {"self", "flags", "copy", "track"};

/* Return the traffic of a socket whose next message is ordinary, as `ordinary_traffic` does, and find the arguments. */
static HotTraffic *receiving(PyObject *const *args, Py_ssize_t count, PyObject *named, PyObject **given, int *copy) {
    bool is_plain = find_arguments(args, count, named, receive_known, 4, given) && given[0] != NULL;
    *copy = is_plain ? PyObject_IsTrue(given[2]) : -1;
    HotTraffic *traffic = *copy >= 0 ? ordinary_traffic(given[0]) : NULL;
    PyErr_Clear();
    return traffic;
}

/* recv(socket, flags=0, copy=True, track=False) */
static PyObject *socket_receive(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *given[] = {NULL, zero, Py_True, Py_False};
    int copy;
    HotTraffic *traffic = receiving(args, count, named, given, &copy);
    if (traffic == NULL) return PyObject_Vectorcall(slow_receive, args, (size_t)count, named);
    PyObject *raw = get(given[0], RAW_RECV), *raw_get = raw == NULL ? NULL : get(given[0], RAW_GET);
    PyObject *result = raw_get == NULL ? NULL : receive_frame(traffic, raw, raw_get, given, copy);
    Py_XDECREF(raw);
    Py_XDECREF(raw_get);
    Py_DECREF(traffic);
    return result;
}

/* recv_multipart(socket, flags=0, copy=True, track=False) */
static PyObject *socket_receive_multipart(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *given[] = {NULL, zero, Py_True, Py_False};
    int copy;
    HotTraffic *traffic = receiving(args, count, named, given, &copy);
    if (traffic == NULL || !has_own(given[0], RECV, AS_METHOD(socket_receive))) {
        Py_XDECREF(traffic);
        return frame_by_frame(RECV_MULTIPART, args, count, named);
    }
    PyObject *raw = get(given[0], RAW_RECV), *raw_get = raw == NULL ? NULL : get(given[0], RAW_GET);
    PyObject *frames = raw_get == NULL ? NULL : PyList_New(0);
    do {
        PyObject *frame = frames == NULL ? NULL : receive_frame(traffic, raw, raw_get, given, copy);
        if (frame == NULL || PyList_Append(frames, frame) < 0) Py_CLEAR(frames);
        Py_XDECREF(frame);
    } while (frames != NULL && traffic->is_partial);
    Py_XDECREF(raw);
    Py_XDECREF(raw_get);
    Py_DECREF(traffic);
    return frames;
}

/* set_socket_functions(send, recv) */
static PyObject *set_functions(PyObject *module, PyObject *args) {
    PyObject **places[] = {&slow_send, &slow_receive};
    const int wanted = sizeof places / sizeof *places;
    if (PyTuple_GET_SIZE(args) != wanted) return PyErr_Format(PyExc_TypeError, "it takes %d arguments", wanted);
    if (rcvmore == NULL && (rcvmore = PyLong_FromLong(RCVMORE)) == NULL) return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].name == NULL && (names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) return NULL;
    for (int i = 0; i < wanted; i++) Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(args, i)));
    Py_RETURN_NONE;
}

#define FUNCTION(name, function, signature, text) \
    {name, AS_METHOD(function), METH_FASTCALL | METH_KEYWORDS, name signature "\n--\n\n" text}

static PyMethodDef methods[] = {
    FUNCTION("send", socket_send, "(self, data, flags=0, copy=True, track=False, routing_id=None, group=None)",
             "Send a frame, and record the message that it ends."),
    FUNCTION("recv", socket_receive, "(self, flags=0, copy=True, track=False)",
             "Receive a frame, and record the message that it ends."),
    FUNCTION("send_multipart", socket_send_multipart, "(self, msg_parts, flags=0, copy=True, track=False, **kwargs)",
             "Send a message, and record it."),
    FUNCTION("recv_multipart", socket_receive_multipart, "(self, flags=0, copy=True, track=False)",
             "Receive a message, and record it."),
    {NULL},
};

static PyMethodDef set_definition = {"set_socket_functions", set_functions, METH_VARARGS, NULL};

int add_socket_functions(PyObject *module) { return add_methods(module, "socket_methods", methods, &set_definition); }
