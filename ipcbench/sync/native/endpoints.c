/* The endpoints of an every_message channel: the counterpart of ring.py, over the same ring, with the same results.

   Only what every message needs is here. Whatever waits, wakes or fails goes to methods of the subclasses in Python. All of
   it runs under the GIL but the copying of large messages, and no Python code runs between finding a place and publishing. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "ring.h"

enum { CONTRACT = 8 }; /* increased whenever C and Python expect something else of each other; the same as in __init__.py */

enum { LARGE_BYTES = 1 << 18 }; /* copying this takes longer than to let go of the GIL and to take it again */

enum { MOST_VIEWS = 1024 };

enum { SPIN_NS = 10000, SPINS_PER_CLOCK = 64, BRIEF_SPINS = 48, PROMPT_SPINS = 16 };

enum { SLICE_NS = 100000000 }; /* the longest sleep, as in ipcbench/sync/wait.py */

enum { MAY_SPIN = 1, MAY_DOZE = 2 }; /* what `_may_look` returns; more than MAY_DOZE: so many later waits begin with that, too */

static PyObject *bytes_of, *require_some, *require_size, *timed_out; /* of ipcbench.backend, and ipcbench.errors.TransportTimeout */

/* Interned names: of what the subclasses have, and of an argument. */
static PyObject *await_room_name, *too_large_name, *ring_writer_name, *await_name, *may_look_name, *message_name, *messages_name, *most_name, *size_name, *release_name, *nothing_reserved_name,
    *too_much_name;

typedef struct {
    PyObject_HEAD
    bool in_use; /* a message is being copied without the GIL */
    char waits;  /* whether a call waits, and a signal handler may run */
    Py_buffer view, cursors;
    PyObject *memory;
} Endpoint;

typedef struct {
    Endpoint endpoint;
    RingOut out; /* its `bytes` are NULL before and after the endpoint's use */
    int64_t limit_bytes;
    int *bells;            /* descriptors that wake readers; NULL before and after the endpoint's use */
    Place found;           /* by `reserve` */
    uint64_t found_number; /* of the message that it is for; none if that is not the next one */
    PyObject *reserved;    /* the view of it */
} RingWriter;

typedef struct {
    Endpoint endpoint;
    RingIn in;
    PyObject **views; /* by entry: the last one of its payload; NULL if there are too many entries */
    int64_t sleep_byte;
    int bell;                       /* descriptor on which the caller waits for messages, or -1 */
    int64_t look_ns;                /* when Python is to look at the peers again */
    char dozes;                     /* whether every wait begins with `doze` */
    long dozes_left;                /* later waits that do */
    unsigned long long dozes_count; /* waits that ended there, and how many of them Python has counted as begun */
    unsigned long long known_dozes_count;
} RingReader;

static bool hold(Endpoint *self, Ring *ring, PyObject *memory, PyObject *cursors) {
    if (PyObject_GetBuffer(memory, &self->view, PyBUF_WRITABLE) < 0) return false;
    if (PyObject_GetBuffer(cursors, &self->cursors, PyBUF_WRITABLE) < 0) return PyBuffer_Release(&self->view), false;
    Py_XSETREF(self->memory, Py_NewRef(memory));
    ring->bytes = self->view.buf;
    ring->cursors = self->cursors.buf;
    return true;
}

static void release(Endpoint *self, Ring *ring) {
    if (self->in_use) return; /* the memory goes with the endpoint */
    ring->bytes = NULL;
    if (self->view.obj != NULL) PyBuffer_Release(&self->view);
    if (self->cursors.obj != NULL) PyBuffer_Release(&self->cursors);
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
        const bool is_timeout = PyUnicode_CompareWithASCIIString(name, "timeout_s") == 0;
        const bool is_first = first_name != NULL && PyUnicode_Compare(name, first_name) == 0;
        if ((is_timeout && count == places) || (is_first && count > 0))
            return PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument %R", function, name), false;
        if (is_timeout) *timeout = args[count + i];
        else if (is_first) *first = args[count + i];
        else return PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", function, name), false;
    }
    if (first_name != NULL && *first == NULL) return PyErr_Format(PyExc_TypeError, "%s() needs %U", function, first_name), false;
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

/* Sleep while a word has a value, for some ns at most; whether that was cut short by a signal. */
static bool futex_sleep(uint32_t *word, uint32_t value, int64_t ns) {
#ifdef __linux__
    const struct timespec time = {ns / 1000000000, ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0) < 0 && errno == EINTR;
#else
    return (void)word, (void)value, (void)ns, false;
#endif
}

/* Wake all who sleep on a word. */
static void futex_wake(uint32_t *word) {
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
#endif
}

/* Ring a doorbell; a full one has woken its reader already. */
static void ring_bell(int bell) {
    const ssize_t written = write(bell, "", 1);
    (void)written;
}

/* Wake the readers that sleep. */
static void wake(RingWriter *self) {
    if (self->out.ring.bytes != NULL && self->bells != NULL && ring_has_sleepers(&self->out))
        ring_wake(&self->out, futex_wake, self->bells, ring_bell);
}

/* Let Python wait until all readers have finished with so many messages; false with an error. */
static bool await_room(RingWriter *self, uint64_t count, PyObject *timeout) {
    wake(self);
    return waited(call_with((PyObject *)self, await_room_name, count, timeout), &self->out.ring);
}

/* Find a place for the next message, waiting for it if need be; false with an error. */
static bool find_room(RingWriter *self, int64_t size_bytes, PyObject *timeout, Place *place) {
    RingOut *out = &self->out;
    uint64_t needed = 0;
    while (out->ring.bytes == NULL || !ring_has_entry(out, &needed))
        if (!await_room(self, needed, timeout)) return false; /* of a closed endpoint, it raises */
    if (size_bytes > self->limit_bytes) {
        Py_XDECREF(call_with((PyObject *)self, too_large_name, (uint64_t)size_bytes, NULL));
        return false;
    }
    while (!ring_find_place(out, size_bytes, place, &needed))
        if (!await_room(self, needed, timeout)) return false;
    return true;
}

/* Write a message without waking anybody; false with an error. */
static bool put_bytes(RingWriter *self, const void *from, int64_t size_bytes, PyObject *timeout) {
    RingOut *out = &self->out;
    Place place;
    if (!find_room(self, size_bytes, timeout, &place)) return false;
    if (size_bytes < LARGE_BYTES) { /* of what is reserved, perhaps: then they may overlap */
        memmove(out->ring.bytes + place.payload, from, (size_t)size_bytes);
    } else {
        self->endpoint.in_use = true;
        Py_BEGIN_ALLOW_THREADS
        memmove(out->ring.bytes + place.payload, from, (size_t)size_bytes);
        Py_END_ALLOW_THREADS
        self->endpoint.in_use = false;
    }
    ring_publish(out, &place);
    return true;
}

/* Whether a buffer is one of plain values, whose bytes are the message; `bytes_of` sees to others. */
static bool is_plain(const Py_buffer *view) {
    const char *format = view->format == NULL ? "B" : view->format;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    return format[0] != 0 && format[1] == 0 && strchr("bBhHiIlLqQnNefdc?", format[0]) != NULL && PyBuffer_IsContiguous(view, 'C');
}

/* Write any buffer, without waking anybody; false with an error. */
static bool put(RingWriter *self, PyObject *message, PyObject *timeout) {
    PyObject *plain;
    Py_buffer view;
    bool done;
    if (PyBytes_CheckExact(message)) return put_bytes(self, PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message), timeout);
    if (PyObject_GetBuffer(message, &view, PyBUF_FULL_RO) == 0) {
        if (is_plain(&view)) {
            done = put_bytes(self, view.buf, view.len, timeout);
            PyBuffer_Release(&view);
            return done;
        }
        PyBuffer_Release(&view);
    } else if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_BufferError)) {
        return false; /* of a signal handler, for one */
    }
    PyErr_Clear();
    if ((plain = PyObject_CallOneArg(bytes_of, message)) == NULL) return false;
    if ((done = PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE) == 0)) {
        done = put_bytes(self, view.buf, view.len, timeout);
        PyBuffer_Release(&view);
    }
    Py_DECREF(plain);
    return done;
}

static void give_up_reserved(RingWriter *self);

/* write(message, timeout_s=None) */
static PyObject *writer_write(RingWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *message = NULL, *timeout = Py_None;
    if (self->out.ring.count == 0) return not_opened();
    if (!find_arguments("write", message_name, args, count, named, &message, &timeout)) return NULL;
    const bool done = put(self, message, timeout);
    give_up_reserved(self);
    if (!done) return NULL;
    wake(self);
    Py_RETURN_NONE;
}

/* write_many(messages, timeout_s=None); readers are woken after the last message, and before it waits for room */
static PyObject *writer_write_many(RingWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *messages = NULL, *timeout = Py_None;
    Py_ssize_t written = 0;
    if (self->out.ring.count == 0) return not_opened();
    if (!find_arguments("write_many", messages_name, args, count, named, &messages, &timeout)) return NULL;
    if ((messages = PySequence_Fast(messages, "messages: a sequence of buffers")) == NULL) return NULL;
    while (written < PySequence_Fast_GET_SIZE(messages)) { /* which the code of a buffer may change */
        PyObject *message = Py_NewRef(PySequence_Fast_GET_ITEM(messages, written));
        const bool done = put(self, message, timeout);
        Py_DECREF(message);
        if (!done) break;
        written++;
    }
    Py_DECREF(messages);
    give_up_reserved(self);
    if (written == 0 && PyErr_Occurred() == NULL && self->out.ring.bytes == NULL) return await_room(self, 0, Py_None), NULL;
    wake(self);
    if (PyErr_Occurred() != NULL) {
        if (written == 0 || !PyErr_ExceptionMatches(timed_out)) return NULL;
        PyErr_Clear();
    }
    return PyLong_FromSsize_t(written);
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

/* Forget what is reserved; unless the caller has views of it, writing to it is an error from now on. */
static void give_up_reserved(RingWriter *self) {
    PyObject *view = self->reserved, *kind, *error, *trace, *done;
    if (view == NULL) return;
    self->reserved = NULL;
    PyErr_Fetch(&kind, &error, &trace);
    done = PyObject_CallMethodNoArgs(view, release_name);
    if (done == NULL) PyErr_Clear(); /* there are views */
    Py_XDECREF(done);
    Py_DECREF(view);
    PyErr_Restore(kind, error, trace);
}

/* The number of bytes, or -1 with an error: of an argument that is none, Python tells. */
static int64_t size_of(PyObject *size) {
    int64_t bytes = PyLong_CheckExact(size) ? PyLong_AsLongLong(size) : -1;
    if (bytes >= 0) return bytes;
    PyErr_Clear(); /* it is too large, negative, or of another type */
    PyObject *checked = PyObject_CallOneArg(require_size, size), *index = checked == NULL ? NULL : PyNumber_Index(size);
    if (index != NULL && (bytes = PyLong_AsLongLong(index)) == -1 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        bytes = INT64_MAX; /* no channel carries that */
    }
    Py_XDECREF(checked);
    Py_XDECREF(index);
    return bytes;
}

/* reserve(size_bytes, timeout_s=None) */
static PyObject *writer_reserve(RingWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    PyObject *size = NULL, *timeout = Py_None;
    if (self->out.ring.count == 0) return not_opened();
    if (!find_arguments("reserve", size_name, args, count, named, &size, &timeout)) return NULL;
    const int64_t size_bytes = size_of(size);
    if (size_bytes < 0) return NULL;
    give_up_reserved(self);
    if (!find_room(self, size_bytes, timeout, &self->found)) return NULL;
    self->found_number = self->out.ring.sequence;
    self->reserved = new_view(self->endpoint.memory, self->found.payload, size_bytes);
    return Py_XNewRef(self->reserved);
}

/* commit(size_bytes=None, timeout_s=None) */
static PyObject *writer_commit(RingWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    RingOut *out = &self->out;
    PyObject *size = Py_None, *timeout = Py_None; /* for which there is no need: there is room */
    if (out->ring.count == 0) return not_opened();
    if (!find_arguments("commit", size_name, args, count, named, &size, &timeout)) return NULL;
    int64_t size_bytes = size == Py_None ? 0 : size_of(size); /* first: it may run any code */
    if (size_bytes < 0) return NULL;
    if (self->reserved == NULL || out->ring.bytes == NULL || self->found_number != out->ring.sequence) {
        give_up_reserved(self);
        PyObject *itself[] = {(PyObject *)self};
        return PyObject_VectorcallMethod(nothing_reserved_name, itself, 1, NULL);
    }
    if (size == Py_None) size_bytes = self->found.size_bytes;
    if (size_bytes > self->found.size_bytes) {
        PyObject *itself[] = {(PyObject *)self, size, self->reserved};
        return PyObject_VectorcallMethod(too_much_name, itself, 3, NULL);
    }
    ring_shrink(out, &self->found, size_bytes);
    ring_publish(out, &self->found);
    give_up_reserved(self);
    wake(self);
    Py_RETURN_NONE;
}

static void forget_bells(RingWriter *self) {
    int *bells = self->bells;
    self->bells = NULL;
    PyMem_Free(bells);
}

/* _forget_bells(): their descriptors may then be those of other files */
static PyObject *writer_forget_bells(RingWriter *self, PyObject *Py_UNUSED(none)) {
    forget_bells(self);
    Py_RETURN_NONE;
}

/* _prepare(memory, cursors, count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes, fenced, limit_bytes, bells) */
static PyObject *writer_prepare(RingWriter *self, PyObject *args) {
    RingOut out = {0};
    PyObject *memory, *cursors, *bells;
    int fenced;
    if (!PyArg_ParseTuple(args, "OOLLLLLLpLO!", &memory, &cursors, &out.ring.count, &out.ring.entry_bytes, &out.ring.inline_bytes,
                          &out.ring.start_bytes, &out.ring.arena_start, &out.ring.arena_bytes, &fenced, &self->limit_bytes,
                          &PyTuple_Type, &bells))
        return NULL;
    out.ring.fenced = fenced != 0;
    out.readers = (int)PyTuple_GET_SIZE(bells);
    self->found_number = UINT64_MAX;
    out.end_of_room = (uint64_t)out.ring.arena_bytes;
    if ((out.ends = PyMem_Calloc((size_t)out.ring.count, sizeof *out.ends)) == NULL) return PyErr_NoMemory();
    PyMem_Free(self->out.ends);
    self->out = out;
    forget_bells(self);
    if ((self->bells = PyMem_Calloc((size_t)out.readers, sizeof *self->bells)) == NULL) return PyErr_NoMemory();
    for (int i = 0; i < out.readers; i++) self->bells[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(bells, i));
    if (PyErr_Occurred() != NULL || !hold(&self->endpoint, &self->out.ring, memory, cursors)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_release(RingWriter *self, PyObject *Py_UNUSED(none)) {
    give_up_reserved(self);
    release(&self->endpoint, &self->out.ring);
    Py_RETURN_NONE;
}

static int writer_clear(RingWriter *self) {
    Py_CLEAR(self->reserved);
    release(&self->endpoint, &self->out.ring);
    return 0;
}

static void writer_dealloc(RingWriter *self) {
    PyObject_GC_UnTrack(self);
    writer_clear(self);
    forget_bells(self);
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

/* Order what this process has stored before what it loads next, and so in all others that take part (membarrier(2)), unless
   each of them has a fence there itself. */
static void barrier(bool fenced) {
#ifdef __linux__
    if (!fenced && syscall(SYS_membarrier, 2 /* GLOBAL_EXPEDITED */, 0) == 0) return;
#endif
    (void)fenced;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Poll for a short time, about as long as the loop in ring.py; whether the message came. */
static bool spin(const RingIn *in) {
    const int64_t end_ns = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (ring_has_message(&in->ring)) return true;
            pause_core();
        }
    } while (now_ns() < end_ns);
    return false;
}

/* Sleep until the next message or the end of the stream, at most for a slice or until the time-out; -1 with an error of a
   signal handler, else whether the message came. */
static int doze(RingReader *self, int64_t ns) {
    const Ring *ring = &self->in.ring;
    const int64_t end_ns = now_ns() + ns;
    int came = 0;
    for (;;) {
        bool interrupted = false;
        ring_set_dozing(ring, self->sleep_byte);
        self->endpoint.in_use = true;
        Py_BEGIN_ALLOW_THREADS
        barrier(ring->fenced || ring_writer_fences(ring));
        uint32_t *const word = ring_sleep_word(ring, self->sleep_byte);
        const uint32_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        const int64_t left_ns = end_ns - now_ns();
        if (!ring_has_message(ring) && !ring_is_ended(ring) && left_ns > 0 && ring_is_dozing(ring, self->sleep_byte))
            interrupted = futex_sleep(word, value, left_ns);
        Py_END_ALLOW_THREADS
        self->endpoint.in_use = false;
        came = ring_has_message(ring);
        self->endpoint.waits = true;
        if (interrupted && !came && PyErr_CheckSignals() < 0) came = -1;
        self->endpoint.waits = false;
        if (came != 0 || ring->bytes == NULL || ring_is_ended(ring) || now_ns() >= end_ns) break;
    }
    if (ring->bytes != NULL) ring_set_awake(ring, self->sleep_byte);
    return came;
}

/* Let Python say how a wait begins, and count it; -1 with an error. */
static long may_look(RingReader *self) {
    PyObject *args[] = {(PyObject *)self}, *answer = PyObject_VectorcallMethod(may_look_name, args, 1, NULL);
    const long may = answer == NULL ? -1 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    return may;
}

/* Sleep for the next message, at most for a slice; whether it came, or -1 with an error. What is left of a time-out takes its
   place, as a new reference. */
static int doze_until(RingReader *self, PyObject **timeout) {
    const double timeout_s = *timeout == Py_None ? 1.0 : PyFloat_CheckExact(*timeout) ? PyFloat_AS_DOUBLE(*timeout) : 0.0;
    if (self->in.ring.bytes == NULL || !(timeout_s > 0.0)) return 0; /* nor if it is NaN, or another type */
    const int64_t begin_ns = now_ns();
    const int came = doze(self, timeout_s < 1e-9 * SLICE_NS ? (int64_t)(1e9 * timeout_s) : SLICE_NS);
    if (came != 0) return came;
    if (*timeout != Py_None) {
        const double left_s = timeout_s - 1e-9 * (double)(now_ns() - begin_ns);
        PyObject *left = PyFloat_FromDouble(left_s > 0.0 ? left_s : 0.0);
        if (left == NULL) return -1;
        Py_SETREF(*timeout, left);
    }
    return 0;
}

/* Look for the next message, for a caller that waits on the doorbell if there is none; false with an error. */
static bool look(RingReader *self) {
    const Ring *ring = &self->in.ring;
    char rings[256];
    while (read(self->bell, rings, sizeof rings) == (ssize_t)sizeof rings) continue;
    ring_set_watching(ring, self->sleep_byte);
    barrier(ring->fenced || ring_writer_fences(ring));
    if (ring_has_message(ring)) return true;
    PyErr_SetString(timed_out, "no message within 0.0 s");
    return false;
}

/* Wait for the next message, in Python if it takes long; false with an error. */
static bool await_message(RingReader *self, PyObject *timeout) {
    const Ring *ring = &self->in.ring;
    if (self->bell >= 0 && ring->bytes != NULL && PyFloat_CheckExact(timeout) && PyFloat_AS_DOUBLE(timeout) == 0.0) {
        const int64_t time_ns = now_ns();
        if (time_ns < self->look_ns && !ring_is_ended(ring)) return look(self);
        self->look_ns = time_ns + SLICE_NS / 2;
    }
    const bool dozes = self->dozes || self->dozes_left > 0;
    /* A reader that is as fast as its writer is here for each message, and Python would take most of its time. */
    for (int i = 0; !dozes && ring->bytes != NULL && i < BRIEF_SPINS; i++) {
        if (ring_has_message(ring)) return true;
        if (i >= PROMPT_SPINS) pause_core(); /* which takes a fifth of a half round trip */
    }
    Py_INCREF(timeout);
    int came = 0;
    if (dozes) {
        self->dozes_left -= !self->dozes;
        came = doze_until(self, &timeout);
        self->dozes_count += came == 1;
    }
    if (came == 0 && ring->bytes != NULL) {
        const long may = may_look(self);
        if (may == -1) came = -1;
        else if (may == MAY_SPIN) came = ring->bytes != NULL && spin(&self->in);
        else if (may >= MAY_DOZE && !self->dozes) {
            self->dozes_left = may - MAY_DOZE;
            came = doze_until(self, &timeout);
            self->dozes_count += came == 1;
            self->known_dozes_count += came == 1;
        }
    }
    if (came == 0) came = waited(call_with((PyObject *)self, await_name, ring->sequence + 1, timeout), ring) ? 1 : -1;
    Py_DECREF(timeout);
    return came == 1;
}

/* Whether a view that was returned before may be returned again: messages in one entry often have one size, and making a
   view takes longer than all the rest. */
static inline bool is_usable(PyObject *view, int64_t size_bytes) {
    return PyMemoryView_GET_BUFFER(view)->len == size_bytes && !(((PyMemoryViewObject *)view)->flags & _Py_MEMORYVIEW_RELEASED);
}

/* Say that the last messages are finished with, and wake the writer if it waits for that; false with an error. */
static bool finish(RingReader *self) {
    if (self->in.ring.bytes == NULL || !ring_finish(&self->in)) return true;
    PyObject *args[] = {(PyObject *)self}, *done = PyObject_VectorcallMethod(ring_writer_name, args, 1, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

/* Return a view of the message `ahead` of the next one, which is there. */
static PyObject *view_of_message(RingReader *self, uint64_t ahead) {
    Ring ring = self->in.ring;
    ring.sequence += ahead;
    const Place place = ring_message(&ring);
    const bool is_kept = self->views != NULL && place.payload == place.entry + HEAD_BYTES;
    PyObject **kept = is_kept ? &self->views[ring.sequence % (uint64_t)ring.count] : NULL, *view;
    if (kept != NULL && *kept != NULL && is_usable(*kept, place.size_bytes)) return Py_NewRef(*kept);
    if ((view = new_view(self->endpoint.memory, place.payload, place.size_bytes)) == NULL) return NULL;
    if (kept != NULL) Py_XSETREF(*kept, Py_NewRef(view));
    return view;
}

/* read(timeout_s=None) */
static PyObject *reader_read(RingReader *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    RingIn *in = &self->in;
    PyObject *timeout = Py_None, *view;
    if (in->ring.count == 0) return not_opened();
    if (!find_arguments("read", NULL, args, count, named, NULL, &timeout)) return NULL;
    if (!finish(self)) return NULL;
    if ((in->ring.bytes == NULL || !ring_has_message(&in->ring)) && !await_message(self, timeout)) return NULL;
    if ((view = view_of_message(self, 0)) == NULL) return NULL;
    if (PyErr_CheckSignals() < 0) return Py_DECREF(view), NULL; /* the next call returns the message */
    in->ring.sequence++;
    return view;
}

/* read_many(most, timeout_s=None) */
static PyObject *reader_read_many(RingReader *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    RingIn *in = &self->in;
    PyObject *most = NULL, *timeout = Py_None, *checked, *view, *views;
    if (in->ring.count == 0) return not_opened();
    if (!find_arguments("read_many", most_name, args, count, named, &most, &timeout)) return NULL;
    if ((checked = PyObject_CallOneArg(require_some, most)) == NULL) return NULL;
    Py_DECREF(checked);
    const Py_ssize_t limit = PyNumber_AsSsize_t(most, NULL); /* or the largest one */
    if (limit == -1 && PyErr_Occurred() != NULL) return NULL;
    if (!finish(self)) return NULL;
    if ((in->ring.bytes == NULL || !ring_has_message(&in->ring)) && !await_message(self, timeout)) return NULL;
    if ((views = PyList_New(0)) == NULL) return NULL;
    Ring next = in->ring;
    do {
        if ((view = view_of_message(self, next.sequence - in->ring.sequence)) == NULL || PyList_Append(views, view) < 0) {
            Py_XDECREF(view);
            Py_DECREF(views);
            return NULL; /* the next call returns the same messages */
        }
        Py_DECREF(view);
        next.sequence++;
    } while (PyList_GET_SIZE(views) < limit && ring_has_message(&next));
    if (PyErr_CheckSignals() < 0) return Py_DECREF(views), NULL;
    in->ring.sequence = next.sequence;
    return views;
}

/* release() */
static PyObject *reader_done(RingReader *self, PyObject *Py_UNUSED(none)) {
    if (!finish(self)) return NULL;
    Py_RETURN_NONE;
}

/* _prepare(memory, cursors, count, entry_bytes, inline_bytes, start_bytes, arena_start, arena_bytes, fenced, consumed_offset, sleep_byte) */
static PyObject *reader_prepare(RingReader *self, PyObject *args) {
    RingIn in = {0};
    PyObject *memory, *cursors;
    int fenced;
    if (self->in.ring.count != 0) return PyErr_Format(PyExc_RuntimeError, "the endpoint is open already");
    if (!PyArg_ParseTuple(args, "OOLLLLLLpLL", &memory, &cursors, &in.ring.count, &in.ring.entry_bytes, &in.ring.inline_bytes,
                          &in.ring.start_bytes, &in.ring.arena_start, &in.ring.arena_bytes, &fenced, &in.consumed_offset,
                          &self->sleep_byte))
        return NULL;
    in.ring.fenced = fenced != 0;
    self->bell = -1;
    if (in.ring.count <= MOST_VIEWS && (self->views = PyMem_Calloc((size_t)in.ring.count, sizeof *self->views)) == NULL)
        return PyErr_NoMemory();
    self->in = in;
    if (!hold(&self->endpoint, &self->in.ring, memory, cursors)) return NULL;
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
    Py_VISIT(self->cursors.obj);
    return 0;
}

static int writer_traverse(RingWriter *self, visitproc visit, void *arg) {
    Py_VISIT(self->reserved);
    return endpoint_traverse(&self->endpoint, visit, arg);
}

static int reader_traverse(RingReader *self, visitproc visit, void *arg) {
    for (int64_t i = 0; self->views != NULL && i < self->in.ring.count; i++) Py_VISIT(self->views[i]);
    return endpoint_traverse(&self->endpoint, visit, arg);
}

#define AS_METHOD(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef writer_methods[] = {
    {"write", AS_METHOD(writer_write), METH_FASTCALL | METH_KEYWORDS, "write($self, message, timeout_s=None)\n--\n\nSee Writer."},
    {"write_many", AS_METHOD(writer_write_many), METH_FASTCALL | METH_KEYWORDS,
     "write_many($self, messages, timeout_s=None)\n--\n\nSee Writer."},
    {"reserve", AS_METHOD(writer_reserve), METH_FASTCALL | METH_KEYWORDS,
     "reserve($self, size_bytes, timeout_s=None)\n--\n\nSee Writer."},
    {"commit", AS_METHOD(writer_commit), METH_FASTCALL | METH_KEYWORDS,
     "commit($self, size_bytes=None, timeout_s=None)\n--\n\nSee Writer."},
    {"_forget_bells", (PyCFunction)writer_forget_bells, METH_NOARGS, NULL},
    {"_prepare", (PyCFunction)writer_prepare, METH_VARARGS, NULL},
    {"_release", (PyCFunction)writer_release, METH_NOARGS, NULL},
    {NULL},
};

static PyMethodDef reader_methods[] = {
    {"read", AS_METHOD(reader_read), METH_FASTCALL | METH_KEYWORDS, "read($self, timeout_s=None)\n--\n\nSee Reader."},
    {"read_many", AS_METHOD(reader_read_many), METH_FASTCALL | METH_KEYWORDS,
     "read_many($self, most, timeout_s=None)\n--\n\nSee Reader."},
    {"release", (PyCFunction)reader_done, METH_NOARGS, "release($self)\n--\n\nSee Reader."},
    {"_prepare", (PyCFunction)reader_prepare, METH_VARARGS, NULL},
    {"_release", (PyCFunction)reader_release, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject writer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.sync.native._c.RingWriter",
    .tp_basicsize = sizeof(RingWriter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_traverse = (traverseproc)writer_traverse,
    .tp_clear = (inquiry)writer_clear,
    .tp_methods = writer_methods,
};

static PyMemberDef reader_members[] = {
    {"_waits_in_c", T_BOOL, offsetof(Endpoint, waits), READONLY, NULL},
    {"_bell", T_INT, offsetof(RingReader, bell), 0, NULL},
    {"_dozes", T_BOOL, offsetof(RingReader, dozes), 0, NULL},
    {"_dozes_left", T_LONG, offsetof(RingReader, dozes_left), 0, NULL},
    {"_dozes_count", T_ULONGLONG, offsetof(RingReader, dozes_count), READONLY, NULL},
    {"_known_dozes_count", T_ULONGLONG, offsetof(RingReader, known_dozes_count), READONLY, NULL},
    {NULL},
};

static PyTypeObject reader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.sync.native._c.RingReader",
    .tp_basicsize = sizeof(RingReader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)reader_dealloc,
    .tp_traverse = (traverseproc)reader_traverse,
    .tp_clear = (inquiry)reader_clear,
    .tp_methods = reader_methods,
    .tp_members = reader_members,
};

/* is_main_interpreter(): others find the module as it is, and must not use what belongs to the main one. */
static PyObject *is_main_interpreter(PyObject *module, PyObject *none) {
    return PyBool_FromLong(PyInterpreterState_Get() == PyInterpreterState_Main());
}

static PyMethodDef functions[] = {{"is_main_interpreter", is_main_interpreter, METH_NOARGS, NULL}, {NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ipcbench.sync.native._c",
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
        {&await_room_name, "_await_room"}, {&too_large_name, "_too_large"},
        {&ring_writer_name, "_ring_writer"}, {&await_name, "_await"}, {&may_look_name, "_may_look"}, {&message_name, "message"},
        {&messages_name, "messages"}, {&most_name, "most"}, {&size_name, "size_bytes"}, {&release_name, "release"},
        {&nothing_reserved_name, "_nothing_reserved"}, {&too_much_name, "_too_much"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*names[i].place == NULL && (*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL) return NULL;
    PyObject *backend = PyImport_ImportModule("ipcbench.backend");
    bytes_of = backend == NULL ? NULL : PyObject_GetAttrString(backend, "bytes_of");
    require_some = bytes_of == NULL ? NULL : PyObject_GetAttrString(backend, "require_some");
    require_size = require_some == NULL ? NULL : PyObject_GetAttrString(backend, "require_size");
    Py_XDECREF(backend);
    PyObject *errors = PyImport_ImportModule("ipcbench.errors");
    timed_out = errors == NULL ? NULL : PyObject_GetAttrString(errors, "TransportTimeout");
    Py_XDECREF(errors);
    if (require_size == NULL || timed_out == NULL) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && (PyModule_AddType(module, &writer_type) < 0 || PyModule_AddType(module, &reader_type) < 0 ||
                           PyModule_AddIntConstant(module, "CONTRACT", CONTRACT) < 0))
        Py_CLEAR(module);
    return module;
}
