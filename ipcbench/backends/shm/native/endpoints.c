/* The endpoints of an every_message channel: the counterpart of ring.py, over the same ring, with the same results.

   Only what every message needs is here. Whatever waits, wakes or fails goes to methods of the subclasses in Python. All of
   it runs under the GIL but the copying of large messages, and no Python code runs between finding a place and publishing. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <time.h>

#include "ring.h"

enum { CONTRACT = 1 }; /* increased whenever C and Python expect something else of each other; the same as in __init__.py */

enum { LARGE_BYTES = 1 << 18 }; /* copying this takes longer than to let go of the GIL and to take it again */

enum { MOST_VIEWS = 1024 };

enum { SPIN_NS = 10000, SPINS_PER_CLOCK = 64 };

static PyObject *bytes_of; /* ipcbench.backend.bytes_of */

/* Interned names: of what the subclasses have, and of an argument. */
static PyObject *await_room_name, *too_large_name, *ring_sleepers_name, *ring_writer_name, *await_name, *may_look_name, *message_name;

typedef struct {
    PyObject_HEAD
    bool in_use; /* a message is being copied without the GIL */
    Py_buffer view;
    PyObject *memory;
} Endpoint;

typedef struct {
    Endpoint endpoint;
    RingOut out; /* its `bytes` are NULL before and after the endpoint's use */
    int64_t limit_bytes;
} RingWriter;

typedef struct {
    Endpoint endpoint;
    RingIn in;
    PyObject **views; /* by entry: the last one of its payload; NULL if there are too many entries */
} RingReader;

static bool hold(Endpoint *self, Ring *ring, PyObject *memory) {
    if (PyObject_GetBuffer(memory, &self->view, PyBUF_WRITABLE) < 0) return false;
    Py_XSETREF(self->memory, Py_NewRef(memory));
    ring->bytes = self->view.buf;
    return true;
}

static void release(Endpoint *self, Ring *ring) {
    if (self->in_use) return; /* the memory goes with the endpoint */
    ring->bytes = NULL;
    if (self->view.obj != NULL) PyBuffer_Release(&self->view);
    Py_CLEAR(self->memory);
}

static PyObject *not_opened(void) {
    PyErr_SetString(PyExc_RuntimeError, "the endpoint was not opened");
    return NULL;
}

/* Find message, unless it has no name, and time-out; false with an error. */
static bool find_arguments(const char *function, PyObject *first_name, PyObject *const *args, Py_ssize_t count, PyObject *named,
                           PyObject **first, PyObject **timeout) {
    const Py_ssize_t places = first_name == NULL ? 1 : 2;
    PyObject **found[] = {first_name == NULL ? timeout : first, timeout};
    if (count > places) return PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments", function, places), false;
    for (Py_ssize_t i = 0; i < count; i++) *found[i] = args[i];
    for (Py_ssize_t i = 0; named != NULL && i < PyTuple_GET_SIZE(named); i++) {
        PyObject *name = PyTuple_GET_ITEM(named, i);
        if (PyUnicode_CompareWithASCIIString(name, "timeout_s") == 0) *timeout = args[count + i];
        else if (first_name != NULL && PyUnicode_Compare(name, first_name) == 0) *first = args[count + i];
        else return PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", function, name), false;
    }
    if (first_name != NULL && *first == NULL) return PyErr_Format(PyExc_TypeError, "%s() needs a message", function), false;
    return true;
}

/* Call a method with a number and, unless it is NULL, a time-out: a new reference, or NULL with an error. */
static PyObject *call_with(PyObject *self, PyObject *name, uint64_t number, PyObject *timeout) {
    PyObject *args[] = {self, PyLong_FromUnsignedLongLong(number), timeout};
    PyObject *done = args[1] == NULL ? NULL : PyObject_VectorcallMethod(name, args, timeout == NULL ? 2 : 3, NULL);
    Py_XDECREF(args[1]);
    return done;
}

/* Return whether a wait has ended as it should, and let go of what it returned. */
static bool waited(PyObject *done, const Ring *ring) {
    Py_XDECREF(done);
    if (done == NULL || ring->bytes != NULL) return done != NULL;
    PyErr_SetString(PyExc_RuntimeError, "the endpoint was closed while it waited");
    return false;
}

/* --------------------------------------------------------------------------------------------- the writer */

/* Let Python wait until all readers have finished with so many messages; false with an error. */
static bool await_room(RingWriter *self, uint64_t count, PyObject *timeout) {
    return waited(call_with((PyObject *)self, await_room_name, count, timeout), &self->out.ring);
}

static PyObject *write_bytes(RingWriter *self, const void *from, int64_t size_bytes, PyObject *timeout) {
    RingOut *out = &self->out;
    Place place;
    uint64_t needed = 0;
    while (out->ring.bytes == NULL || !ring_has_entry(out, &needed))
        if (!await_room(self, needed, timeout)) return NULL; /* of a closed endpoint, it raises */
    if (size_bytes > self->limit_bytes) return call_with((PyObject *)self, too_large_name, (uint64_t)size_bytes, NULL);
    while (!ring_find_place(out, size_bytes, &place, &needed))
        if (!await_room(self, needed, timeout)) return NULL;
    if (size_bytes < LARGE_BYTES) {
        memcpy(out->ring.bytes + place.payload, from, (size_t)size_bytes);
    } else {
        self->endpoint.in_use = true;
        Py_BEGIN_ALLOW_THREADS
        memcpy(out->ring.bytes + place.payload, from, (size_t)size_bytes);
        Py_END_ALLOW_THREADS
        self->endpoint.in_use = false;
    }
    ring_publish(out, &place);
    if (!ring_has_sleepers(out)) Py_RETURN_NONE;
    PyObject *args[] = {(PyObject *)self};
    return PyObject_VectorcallMethod(ring_sleepers_name, args, 1, NULL);
}

/* Whether a buffer is one of plain values, whose bytes are the message; `bytes_of` sees to others. */
static bool is_plain(const Py_buffer *view) {
    const char *format = view->format == NULL ? "B" : view->format;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    return format[0] != 0 && format[1] == 0 && strchr("bBhHiIlLqQnNefdc?", format[0]) != NULL && PyBuffer_IsContiguous(view, 'C');
}

/* write(message, timeout_s=None) */
static PyObject *writer_write(RingWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *message = NULL, *timeout = Py_None, *plain, *done;
    Py_buffer view;
    if (self->out.ring.count == 0) return not_opened();
    if (!find_arguments("write", message_name, args, count, named, &message, &timeout)) return NULL;
    if (PyBytes_CheckExact(message)) return write_bytes(self, PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message), timeout);
    if (PyObject_GetBuffer(message, &view, PyBUF_FULL_RO) == 0) {
        if (is_plain(&view)) {
            done = write_bytes(self, view.buf, view.len, timeout);
            PyBuffer_Release(&view);
            return done;
        }
        PyBuffer_Release(&view);
    }
    PyErr_Clear();
    if ((plain = PyObject_CallOneArg(bytes_of, message)) == NULL) return NULL;
    done = PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE) < 0 ? NULL : write_bytes(self, view.buf, view.len, timeout);
    if (done != NULL || view.obj != NULL) PyBuffer_Release(&view);
    Py_DECREF(plain);
    return done;
}

/* _prepare(memory, count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes, fenced, limit_bytes, readers) */
static PyObject *writer_prepare(RingWriter *self, PyObject *args) {
    RingOut out = {0};
    PyObject *memory;
    int fenced;
    if (!PyArg_ParseTuple(args, "OLLLLLLpLi", &memory, &out.ring.count, &out.ring.entry_bytes, &out.ring.inline_bytes,
                          &out.ring.start_bytes, &out.ring.arena_start, &out.ring.arena_bytes, &fenced, &self->limit_bytes,
                          &out.readers))
        return NULL;
    out.ring.fenced = fenced != 0;
    out.end_of_room = (uint64_t)out.ring.arena_bytes;
    if ((out.ends = PyMem_Calloc((size_t)out.ring.count, sizeof *out.ends)) == NULL) return PyErr_NoMemory();
    PyMem_Free(self->out.ends);
    self->out = out;
    if (!hold(&self->endpoint, &self->out.ring, memory)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_release(RingWriter *self, PyObject *Py_UNUSED(none)) {
    release(&self->endpoint, &self->out.ring);
    Py_RETURN_NONE;
}

static int writer_clear(RingWriter *self) {
    release(&self->endpoint, &self->out.ring);
    return 0;
}

static void writer_dealloc(RingWriter *self) {
    PyObject_GC_UnTrack(self);
    release(&self->endpoint, &self->out.ring);
    PyMem_Free(self->out.ends);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* --------------------------------------------------------------------------------------------- the reader */

static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Poll for a short time, about as long as the loop in ring.py; whether the message came. */
static bool spin(const RingIn *in) {
    const int64_t end_ns = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (ring_has_message(in)) return true;
            pause_core();
        }
    } while (now_ns() < end_ns);
    return false;
}

/* Wait for the next message, in Python if it takes long; false with an error. */
static bool await_message(RingReader *self, PyObject *timeout) {
    const RingIn *in = &self->in;
    if (in->ring.bytes != NULL) {
        PyObject *args[] = {(PyObject *)self}, *may_look = PyObject_VectorcallMethod(may_look_name, args, 1, NULL);
        if (may_look == NULL) return false;
        const bool looks = may_look == Py_True;
        Py_DECREF(may_look);
        if (looks && in->ring.bytes != NULL && spin(in)) return true;
    }
    return waited(call_with((PyObject *)self, await_name, in->ring.sequence + 1, timeout), &in->ring);
}

/* Whether a view that was returned before may be returned again: messages in one entry often have one size, and making a
   view takes longer than all the rest. */
static inline bool is_usable(PyObject *view, int64_t size_bytes) {
    return PyMemoryView_GET_BUFFER(view)->len == size_bytes && !(((PyMemoryViewObject *)view)->flags & _Py_MEMORYVIEW_RELEASED);
}

static PyObject *new_view(PyObject *memory, int64_t begin, int64_t size_bytes) {
    PyObject *from = PyLong_FromLongLong(begin), *to = from == NULL ? NULL : PyLong_FromLongLong(begin + size_bytes);
    PyObject *slice = to == NULL ? NULL : PySlice_New(from, to, NULL);
    PyObject *view = slice == NULL ? NULL : PyObject_GetItem(memory, slice);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(slice);
    return view;
}

/* read(timeout_s=None) */
static PyObject *reader_read(RingReader *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    RingIn *in = &self->in;
    PyObject *timeout = Py_None, *view;
    if (in->ring.count == 0) return not_opened();
    if (!find_arguments("read", NULL, args, count, named, NULL, &timeout)) return NULL;
    if (in->ring.bytes != NULL && ring_finish(in)) {
        PyObject *itself[] = {(PyObject *)self}, *done = PyObject_VectorcallMethod(ring_writer_name, itself, 1, NULL);
        if (done == NULL) return NULL;
        Py_DECREF(done);
    }
    if ((in->ring.bytes == NULL || !ring_has_message(in)) && !await_message(self, timeout)) return NULL;
    const Place place = ring_message(in);
    const bool is_kept = self->views != NULL && place.payload == place.entry + HEAD_BYTES;
    PyObject **kept = is_kept ? &self->views[in->ring.sequence % (uint64_t)in->ring.count] : NULL;
    if (kept != NULL && *kept != NULL && is_usable(*kept, place.size_bytes)) {
        view = Py_NewRef(*kept);
    } else {
        if ((view = new_view(self->endpoint.memory, place.payload, place.size_bytes)) == NULL) return NULL;
        if (kept != NULL) Py_XSETREF(*kept, Py_NewRef(view));
    }
    in->ring.sequence++;
    return view;
}

/* _prepare(memory, count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes, fenced, consumed_offset) */
static PyObject *reader_prepare(RingReader *self, PyObject *args) {
    RingIn in = {0};
    PyObject *memory;
    int fenced;
    if (self->in.ring.count != 0) return PyErr_Format(PyExc_RuntimeError, "the endpoint is open already");
    if (!PyArg_ParseTuple(args, "OLLLLLLpL", &memory, &in.ring.count, &in.ring.entry_bytes, &in.ring.inline_bytes,
                          &in.ring.start_bytes, &in.ring.arena_start, &in.ring.arena_bytes, &fenced, &in.consumed_offset))
        return NULL;
    in.ring.fenced = fenced != 0;
    if (in.ring.count <= MOST_VIEWS && (self->views = PyMem_Calloc((size_t)in.ring.count, sizeof *self->views)) == NULL)
        return PyErr_NoMemory();
    self->in = in;
    if (!hold(&self->endpoint, &self->in.ring, memory)) return NULL;
    Py_RETURN_NONE;
}

static void forget_views(RingReader *self) {
    PyObject **views = self->views;
    self->views = NULL;
    for (int64_t i = 0; views != NULL && i < self->in.ring.count; i++) Py_XDECREF(views[i]);
    PyMem_Free(views);
}

static int reader_clear(RingReader *self) {
    forget_views(self);
    release(&self->endpoint, &self->in.ring);
    return 0;
}

static PyObject *reader_release(RingReader *self, PyObject *Py_UNUSED(none)) {
    reader_clear(self);
    Py_RETURN_NONE;
}

static void reader_dealloc(RingReader *self) {
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* --------------------------------------------------------------------------------------------- the module */

static int endpoint_traverse(Endpoint *self, visitproc visit, void *arg) {
    Py_VISIT(self->memory);
    Py_VISIT(self->view.obj);
    return 0;
}

static int reader_traverse(RingReader *self, visitproc visit, void *arg) {
    for (int64_t i = 0; self->views != NULL && i < self->in.ring.count; i++) Py_VISIT(self->views[i]);
    return endpoint_traverse(&self->endpoint, visit, arg);
}

#define AS_METHOD(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef writer_methods[] = {
    {"write", AS_METHOD(writer_write), METH_FASTCALL | METH_KEYWORDS, "write($self, message, timeout_s=None)\n--\n\nSee Writer."},
    {"_prepare", (PyCFunction)writer_prepare, METH_VARARGS, NULL},
    {"_release", (PyCFunction)writer_release, METH_NOARGS, NULL},
    {NULL},
};

static PyMethodDef reader_methods[] = {
    {"read", AS_METHOD(reader_read), METH_FASTCALL | METH_KEYWORDS, "read($self, timeout_s=None)\n--\n\nSee Reader."},
    {"_prepare", (PyCFunction)reader_prepare, METH_VARARGS, NULL},
    {"_release", (PyCFunction)reader_release, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject writer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.backends.shm.native._c.RingWriter",
    .tp_basicsize = sizeof(RingWriter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_traverse = (traverseproc)endpoint_traverse,
    .tp_clear = (inquiry)writer_clear,
    .tp_methods = writer_methods,
};

static PyTypeObject reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.backends.shm.native._c.RingReader",
    .tp_basicsize = sizeof(RingReader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_traverse = (traverseproc)reader_traverse,
    .tp_clear = (inquiry)reader_clear,
    .tp_methods = reader_methods,
};

/* is_main_interpreter(): others find the module as it is, and must not use what belongs to the main one. */
static PyObject *is_main_interpreter(PyObject *module, PyObject *none) {
    return PyBool_FromLong(PyInterpreterState_Get() == PyInterpreterState_Main());
}

static PyMethodDef functions[] = {{"is_main_interpreter", is_main_interpreter, METH_NOARGS, NULL}, {NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ipcbench.backends.shm.native._c",
    .m_doc = "The endpoints of an every_message channel, in C.",
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
    const struct { PyObject **place; const char *text; } names[] = {
        {&await_room_name, "_await_room"}, {&too_large_name, "_too_large"}, {&ring_sleepers_name, "_ring_sleepers"},
        {&ring_writer_name, "_ring_writer"}, {&await_name, "_await"}, {&may_look_name, "_may_look"}, {&message_name, "message"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*names[i].place == NULL && (*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL) return NULL;
    PyObject *backend = PyImport_ImportModule("ipcbench.backend");
    bytes_of = backend == NULL ? NULL : PyObject_GetAttrString(backend, "bytes_of");
    Py_XDECREF(backend);
    if (bytes_of == NULL) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddType(module, &writer_type) < 0 || PyModule_AddType(module, &reader_type) < 0 ||
                           PyModule_AddIntConstant(module, "CONTRACT", CONTRACT) < 0))
        Py_CLEAR(module);
    return module;
}
