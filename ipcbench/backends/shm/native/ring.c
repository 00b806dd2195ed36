/* The endpoints of an every_message channel in C: the counterpart of ring.py, over the same segment, with the same results.

   Only what every message needs is here. Whatever waits, wakes or fails goes to methods of the subclasses in Python. All of
   it runs under the GIL but the copying of large messages, and no Python code runs between taking a place and publishing. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { CONTRACT = 1 }; /* increased whenever C and Python expect something else of each other; the same as in __init__.py */

enum { HEAD_BYTES = 24, LINE_BYTES = 64 }; /* as in mapping.py */

/* Offsets in bytes, as in ipcbench/sync/cursors.py. */
enum { WRITER_SLEEPS = 8 * 8, READER_SLEEPS = 8 * 16, FIRST_READER = 8 * 24, READER_BYTES = 8 * 8 };

enum { LARGE_BYTES = 1 << 18 }; /* copying this takes longer than to let go of the GIL and to take it again */

enum { MOST_VIEWS = 1024 };

enum { SPIN_NS = 10000, SPINS_PER_CLOCK = 64 };

static PyObject *bytes_of; /* ipcbench.backend.bytes_of */

/* Interned names of what the subclasses have. */
static PyObject *await_room_name, *too_large_name, *ring_sleepers_name, *ring_writer_name, *await_name, *may_look_name;

typedef struct {
    PyObject_HEAD
    char *bytes; /* of the segment; NULL before and after its use */
    uint64_t sequence;
    int64_t count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes;
    bool fenced, in_use;
    Py_buffer view;
    PyObject *memory;
} Ring;

typedef struct {
    Ring ring;
    uint64_t room; /* the first number that may not be written before the readers' progress is looked at again */
    uint64_t next_place, end_of_room;
    uint64_t *ends; /* by entry: where the arena was filled up to after its message */
    int64_t limit_bytes;
    int readers;
} RingWriter;

typedef struct {
    Ring ring;
    int64_t consumed_offset;
    PyObject **views; /* by entry: the last one of its payload; NULL if there are too many entries */
} RingReader;

static inline uint64_t load(const Ring *ring, int64_t offset) {
    return __atomic_load_n((uint64_t *)(ring->bytes + offset), __ATOMIC_ACQUIRE);
}

static inline void store(const Ring *ring, int64_t offset, uint64_t value) {
    __atomic_store_n((uint64_t *)(ring->bytes + offset), value, __ATOMIC_RELEASE);
}

static inline int64_t entry_of(const Ring *ring, uint64_t sequence) {
    return ring->start_bytes + (int64_t)(sequence % (uint64_t)ring->count) * ring->entry_bytes;
}

static inline void full_fence(const Ring *ring) {
    if (ring->fenced) __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void ring_release(Ring *self) {
    if (self->in_use) return; /* another thread copies; the buffer goes with the endpoint */
    self->bytes = NULL;
    if (self->view.obj != NULL) PyBuffer_Release(&self->view);
    Py_CLEAR(self->memory);
}

static PyObject *not_prepared(void) {
    PyErr_SetString(PyExc_RuntimeError, "the endpoint was not opened");
    return NULL;
}

/* Find message and time-out; false with an error. */
static bool find_arguments(const char *name, PyObject *first_name, PyObject *const *args, Py_ssize_t count, PyObject *named,
                           PyObject **first, PyObject **timeout) {
    const Py_ssize_t places = first_name == NULL ? 1 : 2;
    PyObject **found[] = {first_name == NULL ? timeout : first, timeout};
    if (count > places) return PyErr_Format(PyExc_TypeError, "%s takes at most %zd arguments", name, places), false;
    for (Py_ssize_t i = 0; i < count; i++) *found[i] = args[i];
    for (Py_ssize_t i = 0; named != NULL && i < PyTuple_GET_SIZE(named); i++) {
        PyObject *key = PyTuple_GET_ITEM(named, i);
        if (PyUnicode_CompareWithASCIIString(key, "timeout_s") == 0) *timeout = args[count + i];
        else if (first_name != NULL && PyUnicode_Compare(key, first_name) == 0) *first = args[count + i];
        else return PyErr_Format(PyExc_TypeError, "%s got an unexpected keyword argument %R", name, key), false;
    }
    if (first_name != NULL && *first == NULL) return PyErr_Format(PyExc_TypeError, "%s needs a message", name), false;
    return true;
}

/* --------------------------------------------------------------------------------------------- the writer */

static uint64_t slowest(const RingWriter *self) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < self->readers; i++) {
        uint64_t consumed = load(&self->ring, FIRST_READER + (int64_t)i * READER_BYTES);
        if (consumed < least) least = consumed;
    }
    return least;
}

/* Let Python wait until all readers have finished with `count` messages; false with an error. */
static bool await_room(RingWriter *self, uint64_t count, PyObject *timeout) {
    PyObject *number = PyLong_FromUnsignedLongLong(count);
    PyObject *args[] = {(PyObject *)self, number, timeout};
    PyObject *done = number == NULL ? NULL : PyObject_VectorcallMethod(await_room_name, args, 3, NULL);
    Py_XDECREF(number);
    Py_XDECREF(done);
    if (done != NULL && self->ring.bytes == NULL) { /* a signal handler has closed it */
        PyErr_SetString(PyExc_RuntimeError, "the endpoint was closed while it waited");
        return false;
    }
    return done != NULL;
}

static bool make_room(RingWriter *self, PyObject *timeout) {
    Ring *ring = &self->ring;
    uint64_t count = (uint64_t)ring->count;
    if (ring->bytes != NULL) self->room = slowest(self) + count;
    if (ring->sequence < self->room && ring->bytes != NULL) return true;
    if (!await_room(self, ring->sequence < count ? 0 : ring->sequence + 1 - count, timeout)) return false;
    self->room = slowest(self) + count;
    return true;
}

/* Where the arena is free up to if all readers have finished with so many messages. */
static uint64_t end_of_room(const RingWriter *self, uint64_t consumed) {
    const Ring *ring = &self->ring;
    uint64_t before = consumed == 0 ? 0 : self->ends[(consumed - 1) % (uint64_t)ring->count];
    return before + (uint64_t)ring->arena_bytes;
}

/* Take a place in the arena for the next message; its place, or -1 with an error. */
static int64_t take_place(RingWriter *self, int64_t size_bytes, PyObject *timeout, uint64_t *end) {
    Ring *ring = &self->ring;
    const uint64_t arena = (uint64_t)ring->arena_bytes, needed = ((uint64_t)size_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    uint64_t begin = self->next_place;
    if (begin % arena + needed > arena) begin = (begin + arena - 1) / arena * arena;
    while (begin + needed > self->end_of_room) {
        uint64_t consumed = slowest(self), enough = consumed;
        if (consumed >= ring->sequence) { /* all of it is free */
            begin = (begin + arena - 1) / arena * arena;
            self->end_of_room = begin + arena;
            break;
        }
        self->end_of_room = end_of_room(self, consumed);
        if (begin + needed <= self->end_of_room) break;
        while (enough < ring->sequence && begin + needed > end_of_room(self, enough)) enough++;
        if (!await_room(self, enough, timeout)) return -1;
    }
    *end = begin + needed;
    return (int64_t)(begin % arena);
}

static PyObject *write_bytes(RingWriter *self, const void *from, int64_t size_bytes, PyObject *timeout) {
    Ring *ring = &self->ring;
    if ((ring->sequence >= self->room || ring->bytes == NULL) && !make_room(self, timeout)) return NULL;
    if (size_bytes > self->limit_bytes) {
        PyObject *size = PyLong_FromLongLong(size_bytes);
        PyObject *args[] = {(PyObject *)self, size};
        PyObject *done = size == NULL ? NULL : PyObject_VectorcallMethod(too_large_name, args, 2, NULL);
        Py_XDECREF(size);
        return done; /* which is an error */
    }
    const int64_t entry = entry_of(ring, ring->sequence);
    uint64_t end = self->next_place;
    char *to = ring->bytes + entry + HEAD_BYTES;
    if (size_bytes > ring->inline_bytes) {
        int64_t place = take_place(self, size_bytes, timeout, &end);
        if (place < 0) return NULL;
        store(ring, entry + 16, (uint64_t)place);
        to = ring->bytes + ring->arena_start + place;
    }
    if (size_bytes < LARGE_BYTES) {
        memcpy(to, from, (size_t)size_bytes);
    } else {
        ring->in_use = true;
        Py_BEGIN_ALLOW_THREADS
        memcpy(to, from, (size_t)size_bytes);
        Py_END_ALLOW_THREADS
        ring->in_use = false;
    }
    store(ring, entry + 8, (uint64_t)size_bytes);
    self->ends[ring->sequence % (uint64_t)ring->count] = self->next_place = end;
    store(ring, entry, ++ring->sequence);
    full_fence(ring);
    for (int i = 0; i < self->readers; i += 8) {
        if (load(ring, READER_SLEEPS + i) == 0) continue;
        PyObject *args[] = {(PyObject *)self};
        return PyObject_VectorcallMethod(ring_sleepers_name, args, 1, NULL);
    }
    Py_RETURN_NONE;
}

/* Whether a buffer is one of plain values, whose bytes are the message; others are bytes_of's. */
static bool is_plain(const Py_buffer *view) {
    const char *format = view->format == NULL ? "B" : view->format;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    return format[0] != 0 && format[1] == 0 && strchr("bBhHiIlLqQnNefdc?", format[0]) != NULL && PyBuffer_IsContiguous(view, 'C');
}

static PyObject *message_name;

/* write(message, timeout_s=None) */
static PyObject *writer_write(RingWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *message = NULL, *timeout = Py_None, *plain = NULL, *done = NULL;
    Py_buffer view;
    if (self->ring.count == 0) return not_prepared();
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
    plain = PyObject_CallOneArg(bytes_of, message);
    if (plain == NULL || PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE) < 0) {
        Py_XDECREF(plain);
        return NULL;
    }
    done = write_bytes(self, view.buf, view.len, timeout);
    PyBuffer_Release(&view);
    Py_DECREF(plain);
    return done;
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
static bool spin(const Ring *ring, int64_t entry, uint64_t wanted) {
    const int64_t end_ns = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (load(ring, entry) == wanted) return true;
            pause_core();
        }
    } while (now_ns() < end_ns);
    return false;
}

/* Wait for a message, in Python if it takes long; false with an error. */
static bool await_message(RingReader *self, int64_t entry, uint64_t wanted, PyObject *timeout) {
    Ring *ring = &self->ring;
    PyObject *args[] = {(PyObject *)self, NULL, NULL, timeout};
    if (ring->bytes != NULL) {
        PyObject *may_look = PyObject_VectorcallMethod(may_look_name, args, 1, NULL); /* it counts the wait, too */
        if (may_look == NULL) return false;
        bool looks = may_look == Py_True;
        Py_DECREF(may_look);
        if (looks && ring->bytes != NULL && spin(ring, entry, wanted)) return true;
    }
    args[1] = PyLong_FromLongLong(entry / 8);
    args[2] = args[1] == NULL ? NULL : PyLong_FromUnsignedLongLong(wanted);
    PyObject *done = args[2] == NULL ? NULL : PyObject_VectorcallMethod(await_name, args, 4, NULL);
    Py_XDECREF(args[1]);
    Py_XDECREF(args[2]);
    Py_XDECREF(done);
    if (done != NULL && ring->bytes == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the endpoint was closed while it waited");
        return false;
    }
    return done != NULL;
}

/* Whether a view that was returned before may be returned again: messages in one entry often have one size, and making a
   view takes longer than all the rest. */
static inline bool is_usable(PyObject *view, int64_t size_bytes) {
    return PyMemoryView_GET_BUFFER(view)->len == size_bytes && !(((PyMemoryViewObject *)view)->flags & _Py_MEMORYVIEW_RELEASED);
}

static void forget_views(RingReader *self) {
    PyObject **views = self->views;
    self->views = NULL;
    for (int64_t i = 0; views != NULL && i < self->ring.count; i++) Py_XDECREF(views[i]);
    PyMem_Free(views);
}

/* read(timeout_s=None) */
static PyObject *reader_read(RingReader *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    Ring *ring = &self->ring;
    PyObject *timeout = Py_None;
    const uint64_t wanted = ring->sequence + 1;
    if (ring->count == 0) return not_prepared();
    if (!find_arguments("read", NULL, args, count, named, NULL, &timeout)) return NULL;
    const int64_t entry = entry_of(ring, ring->sequence);
    if (ring->bytes != NULL) {
        store(ring, self->consumed_offset, ring->sequence); /* finished with the last view */
        full_fence(ring);
        if (load(ring, WRITER_SLEEPS) != 0) {
            PyObject *itself[] = {(PyObject *)self}, *done = PyObject_VectorcallMethod(ring_writer_name, itself, 1, NULL);
            if (done == NULL) return NULL;
            Py_DECREF(done);
        }
    }
    if ((ring->bytes == NULL || load(ring, entry) != wanted) && !await_message(self, entry, wanted, timeout)) return NULL;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    const int64_t size_bytes = (int64_t)load(ring, entry + 8);
    const bool is_inline = size_bytes <= ring->inline_bytes;
    PyObject **kept = is_inline && self->views != NULL ? &self->views[ring->sequence % (uint64_t)ring->count] : NULL;
    if (kept != NULL && *kept != NULL && is_usable(*kept, size_bytes)) {
        ring->sequence = wanted;
        return Py_NewRef(*kept);
    }
    const int64_t begin = is_inline ? entry + HEAD_BYTES : ring->arena_start + (int64_t)load(ring, entry + 16);
    PyObject *from = PyLong_FromLongLong(begin), *to = from == NULL ? NULL : PyLong_FromLongLong(begin + size_bytes);
    PyObject *slice = to == NULL ? NULL : PySlice_New(from, to, NULL);
    PyObject *view = slice == NULL ? NULL : PyObject_GetItem(ring->memory, slice);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(slice);
    if (view == NULL) return NULL;
    if (kept != NULL) Py_XSETREF(*kept, Py_NewRef(view));
    ring->sequence = wanted;
    return view;
}

/* --------------------------------------------------------------------------------------------- both */

/* _prepare(memory, count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes, fenced, limit_bytes, readers) */
static PyObject *writer_prepare(RingWriter *self, PyObject *args) {
    Ring *ring = &self->ring;
    PyObject *memory;
    int fenced;
    if (!PyArg_ParseTuple(args, "OLLLLLLpLi", &memory, &ring->count, &ring->entry_bytes, &ring->inline_bytes, &ring->start_bytes,
                          &ring->arena_start, &ring->arena_bytes, &fenced, &self->limit_bytes, &self->readers))
        return NULL;
    uint64_t *ends = PyMem_Calloc((size_t)ring->count, sizeof *ends);
    if (ends == NULL) return PyErr_NoMemory();
    PyMem_Free(self->ends);
    self->ends = ends;
    self->end_of_room = (uint64_t)ring->arena_bytes;
    ring->fenced = fenced != 0;
    if (PyObject_GetBuffer(memory, &ring->view, PyBUF_WRITABLE) < 0) return NULL;
    Py_XSETREF(ring->memory, Py_NewRef(memory));
    ring->bytes = ring->view.buf;
    Py_RETURN_NONE;
}

/* _prepare(memory, count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes, fenced, consumed_offset) */
static PyObject *reader_prepare(RingReader *self, PyObject *args) {
    Ring *ring = &self->ring;
    PyObject *memory;
    int fenced;
    if (!PyArg_ParseTuple(args, "OLLLLLLpL", &memory, &ring->count, &ring->entry_bytes, &ring->inline_bytes, &ring->start_bytes,
                          &ring->arena_start, &ring->arena_bytes, &fenced, &self->consumed_offset))
        return NULL;
    ring->fenced = fenced != 0;
    if (self->views == NULL && ring->count <= MOST_VIEWS &&
        (self->views = PyMem_Calloc((size_t)ring->count, sizeof *self->views)) == NULL)
        return PyErr_NoMemory();
    if (PyObject_GetBuffer(memory, &ring->view, PyBUF_WRITABLE) < 0) return NULL;
    Py_XSETREF(ring->memory, Py_NewRef(memory));
    ring->bytes = ring->view.buf;
    Py_RETURN_NONE;
}

static PyObject *ring_let_go(Ring *self, PyObject *Py_UNUSED(none)) {
    ring_release(self);
    Py_RETURN_NONE;
}

static int ring_traverse(Ring *self, visitproc visit, void *arg) {
    Py_VISIT(self->memory);
    Py_VISIT(self->view.obj);
    return 0;
}

static int ring_clear(Ring *self) {
    ring_release(self);
    return 0;
}

static PyObject *reader_let_go(RingReader *self, PyObject *Py_UNUSED(none)) {
    forget_views(self);
    ring_release(&self->ring);
    Py_RETURN_NONE;
}

static int reader_traverse(RingReader *self, visitproc visit, void *arg) {
    for (int64_t i = 0; self->views != NULL && i < self->ring.count; i++) Py_VISIT(self->views[i]);
    return ring_traverse(&self->ring, visit, arg);
}

static int reader_clear(RingReader *self) {
    forget_views(self);
    return ring_clear(&self->ring);
}

static void reader_dealloc(RingReader *self) {
    PyObject_GC_UnTrack(self);
    forget_views(self);
    ring_release(&self->ring);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static void writer_dealloc(RingWriter *self) {
    PyObject_GC_UnTrack(self);
    PyMem_Free(self->ends);
    ring_release(&self->ring);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#define AS_METHOD(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef writer_methods[] = {
    {"write", AS_METHOD(writer_write), METH_FASTCALL | METH_KEYWORDS, "write($self, message, timeout_s=None)\n--\n\nSee Writer."},
    {"_prepare", (PyCFunction)writer_prepare, METH_VARARGS, NULL},
    {"_release", (PyCFunction)ring_let_go, METH_NOARGS, NULL},
    {NULL},
};

static PyMethodDef reader_methods[] = {
    {"read", AS_METHOD(reader_read), METH_FASTCALL | METH_KEYWORDS, "read($self, timeout_s=None)\n--\n\nSee Reader."},
    {"_prepare", (PyCFunction)reader_prepare, METH_VARARGS, NULL},
    {"_release", (PyCFunction)reader_let_go, METH_NOARGS, NULL},
    {NULL},
};

#define TYPE(name_, type_, methods_, dealloc_, traverse_, clear_) \
    { \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.backends.shm.native._c." name_, .tp_basicsize = sizeof(type_), \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .tp_new = PyType_GenericNew, \
        .tp_dealloc = (destructor)dealloc_, .tp_traverse = (traverseproc)traverse_, .tp_clear = (inquiry)clear_, \
        .tp_methods = methods_, \
    }

static PyTypeObject writer_type = TYPE("RingWriter", RingWriter, writer_methods, writer_dealloc, ring_traverse, ring_clear);
static PyTypeObject reader_type = TYPE("RingReader", RingReader, reader_methods, reader_dealloc, reader_traverse, reader_clear);

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
