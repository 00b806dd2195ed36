/* HotCall and HotNothing: the stages of a call, and its record. See call.py. */

#include "hot.h"

enum { BEGIN_AT = 40 }; /* as layout.PACKERS has it */

static inline bool is_none(const PyObject *one) { return one == NULL || one == Py_None; }

static int call_init(HotCall *self, PyObject *args, PyObject *kwargs) {
    HotSite *site;
    if (!PyArg_ParseTuple(args, "O!", &site_type, &site)) return -1;
    Py_XSETREF(self->site, (HotSite *)Py_NewRef(site));
    Py_XSETREF(self->sent_bytes, Py_NewRef(zero));
    Py_XSETREF(self->recv_bytes, Py_NewRef(zero));
    Py_XSETREF(self->span, Py_NewRef(zero));
    return 0;
}

static inline void call_stamp(HotCall *self, int64_t at_ns) {
    if (self->marks <= MAX_STAGES) self->ends_ns[self->marks++] = at_ns; /* one more than any schema has: too many */
}

static bool is_something(PyObject *one) {
    int is_true = one == zero || is_none(one) ? 0 : PyObject_IsTrue(one);
    if (is_true < 0) PyErr_Clear();
    return is_true != 0;
}

/* Add a number of bytes, of whatever type; what is not a number is found out when the record is written. */
static void add_bytes(PyObject **place, PyObject *more) {
    if (*place == zero && PyLong_CheckExact(more)) {
        Py_SETREF(*place, Py_NewRef(more));
        return;
    }
    PyObject *old = Py_XNewRef(*place); /* what is added may be of a class that looks at this very place */
    PyObject *sum = PyNumber_Index(more);
    if (is_something(old)) {
        PyObject *before = sum == NULL ? NULL : PyNumber_Index(old);
        Py_XSETREF(sum, before == NULL ? Py_NewRef(Py_None) : PyNumber_Add(before, sum));
        Py_XDECREF(before);
    }
    PyErr_Clear();
    Py_XSETREF(*place, sum != NULL ? sum : Py_NewRef(more));
    Py_XDECREF(old);
}

static inline void reset(PyObject **place, PyObject *value) {
    if (*place != value) Py_XSETREF(*place, Py_NewRef(value));
}

/* Make it ready for the next call, and free. */
static void call_end(HotCall *self) {
    self->marks = 0;
    self->noted = 0;
    reset(&self->sent_bytes, zero);
    reset(&self->recv_bytes, zero);
    reset(&self->trace, Py_None);
    reset(&self->span, zero);
    HotSite *site = self->site;
    if (site == NULL || self->begin_ns == 0) return; /* ended twice, it is free once */
    self->begin_ns = 0;
    if (site->spare == NULL) {
        site->spare = (HotCall *)Py_NewRef(self);
    } else if (PyList_Append(site->spares, (PyObject *)self) < 0) {
        PyErr_Clear();
    }
}

/* Find the arguments of a mark by place or by name. */
static bool arguments(PyObject *const *args, Py_ssize_t count, PyObject *named, const char *const *names, int limit,
                      PyObject **found) {
    Py_ssize_t named_count = named == NULL ? 0 : PyTuple_GET_SIZE(named);
    for (Py_ssize_t i = 0; i < count && i < limit; i++) found[i] = args[i];
    bool right = count <= limit;
    for (Py_ssize_t i = 0; i < named_count && right; i++) {
        int place = 0;
        while (place < limit && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(named, i), names[place]) != 0) place++;
        right = place < limit && place >= count;
        if (right) found[place] = args[count + i];
    }
    if (!right) PyErr_SetString(PyExc_TypeError, "a mark takes recv_bytes and sent_bytes at most");
    return right;
}

static PyObject *call_mark(HotCall *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    static const char *const names[] = {"recv_bytes", "sent_bytes"};
    int64_t at_ns = now_ns();
    PyObject *found[2] = {zero, zero};
    if (!arguments(args, count, named, names, 2, found)) return NULL;
    call_stamp(self, at_ns);
    if (is_something(found[0])) add_bytes(&self->recv_bytes, found[0]);
    if (is_something(found[1])) add_bytes(&self->sent_bytes, found[1]);
    Py_RETURN_NONE;
}

static PyObject *one_number(HotCall *self, PyObject **place, const char *name, PyObject *const *args, Py_ssize_t count,
                            PyObject *named) {
    int64_t at_ns = now_ns();
    PyObject *found[1] = {NULL};
    if (!arguments(args, count, named, &name, 1, found)) return NULL;
    if (found[0] == NULL) {
        PyErr_Format(PyExc_TypeError, "%s is missing", name);
        return NULL;
    }
    call_stamp(self, at_ns);
    if (found[0] != zero || *place != zero) add_bytes(place, found[0]);
    Py_RETURN_NONE;
}

static PyObject *call_serialized(HotCall *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    return one_number(self, &self->sent_bytes, "sent_bytes", args, count, named);
}

static PyObject *call_received(HotCall *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    return one_number(self, &self->recv_bytes, "recv_bytes", args, count, named);
}

static PyObject *call_sent(HotCall *self, PyObject *Py_UNUSED(none)) {
    call_stamp(self, now_ns());
    Py_RETURN_NONE;
}

static PyObject *call_stamp_at(HotCall *self, PyObject *at_ns) {
    int64_t value = PyLong_AsLongLong(at_ns);
    if (value == -1 && PyErr_Occurred()) return NULL;
    call_stamp(self, value);
    Py_RETURN_NONE;
}

static PyObject *call_stamps(HotCall *self, PyObject *Py_UNUSED(none)) {
    PyObject *list = PyList_New(self->marks);
    for (int i = 0; list != NULL && i < self->marks; i++) {
        PyObject *one = PyLong_FromLongLong(self->ends_ns[i]);
        if (one == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, one);
    }
    return list;
}

static PyObject *call_cut(HotCall *self, PyObject *count) {
    long most = PyLong_AsLong(count);
    if (most < 0) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (self->marks > most) self->marks = (int)most;
    Py_RETURN_NONE;
}

static PyObject *call_end_now(HotCall *self, PyObject *Py_UNUSED(none)) {
    call_end(self);
    Py_RETURN_NONE;
}

static PyObject *call_enter(HotCall *self, PyObject *Py_UNUSED(none)) {
    self->begin_ns = now_ns();
    return Py_NewRef(self);
}

/* Return whether it is a number that a record can hold; no error stays. */
static inline bool to_uint64(PyObject *number, uint64_t *value) {
    if (number == zero) {
        *value = 0;
        return true;
    }
    if (number == NULL || !PyLong_Check(number)) return false;
    *value = PyLong_AsUnsignedLongLong(number);
    if (*value != (uint64_t)-1 || !PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
}

/* Write the record of an ordinary call; false if it is not ordinary, or there is no room. */
static bool call_write(HotCall *self, uint64_t sent_bytes, uint64_t recv_bytes) {
    HotSite *site = self->site;
    Slots *slots = site->segment;
    uint64_t ids[3] = {0, 0, 0};
    if (!is_none(self->trace) && !(PyTuple_Check(self->trace) && PyTuple_GET_SIZE(self->trace) == 2 &&
                                   to_uint64(PyTuple_GET_ITEM(self->trace, 0), ids) &&
                                   to_uint64(PyTuple_GET_ITEM(self->trace, 1), ids + 1) && to_uint64(self->span, ids + 2)))
        return false;
    int ends = self->marks + 1;
    if (slots == NULL || ends >= site->heads_count) return false;
    int64_t offset = slots->next;
    if (offset + layout.record_bytes > slots->limit) return false;
    slots->next = offset + layout.record_bytes;
    char *record = slots->bytes + offset;
    memcpy(record, site->heads_bytes[ends], HEAD_BYTES);
    memcpy(record + HEAD_BYTES, ids, sizeof ids);
    int64_t *times = (int64_t *)(record + BEGIN_AT);
    times[0] = self->begin_ns;
    for (int i = 0; i < MAX_STAGES; i++) times[1 + i] = i < ends ? self->ends_ns[i] : 0;
    uint64_t *rest = (uint64_t *)(times + 1 + MAX_STAGES);
    rest[0] = sent_bytes;
    rest[1] = recv_bytes;
    __atomic_store_n(rest + 2, (uint64_t)(offset ^ layout.marker), __ATOMIC_RELEASE);
    return true;
}

static PyObject *call_exit(HotCall *self, PyObject *const *args, Py_ssize_t count) {
    int64_t end_ns = now_ns(), total_ns = end_ns - self->begin_ns;
    HotSite *site = self->site;
    uint64_t sent_bytes, recv_bytes;
    PyObject *kind = count > 0 ? args[0] : Py_None;
    if (self->begin_ns == 0) Py_RETURN_NONE;
    if (kind == Py_None && !self->noted && site != NULL && self->marks <= site->last && self->marks < MAX_STAGES &&
        to_uint64(self->sent_bytes, &sent_bytes) && to_uint64(self->recv_bytes, &recv_bytes)) {
        bool done;
        self->ends_ns[self->marks] = end_ns;
        if (self->recorded) {
            done = call_write(self, sent_bytes, recv_bytes);
            if (done && total_ns > site->slowest_ns) site->slowest_ns = total_ns;
        } else {
            Sums *sums = site->tally;
            done = 0 <= total_ns && total_ns <= site->slowest_ns && sums != NULL && sums->mapped.bytes != NULL &&
                   sent_bytes <= INT64_MAX && recv_bytes <= INT64_MAX;
            if (done) sums_count(sums, self->begin_ns, self->ends_ns, self->marks + 1, sent_bytes, recv_bytes, false);
        }
        if (done) {
            call_end(self);
            Py_RETURN_NONE;
        }
    }
    return PyObject_CallMethod((PyObject *)self, "_leave", "LO", (long long)end_ns, kind);
}

static int call_traverse(HotCall *self, visitproc visit, void *arg) {
    Py_VISIT(self->site);
    Py_VISIT(self->trace);
    Py_VISIT(self->span);
    Py_VISIT(self->sent_bytes);
    Py_VISIT(self->recv_bytes);
    return 0;
}

static int call_clear(HotCall *self) {
    Py_CLEAR(self->site);
    Py_CLEAR(self->trace);
    Py_CLEAR(self->span);
    Py_CLEAR(self->sent_bytes);
    Py_CLEAR(self->recv_bytes);
    return 0;
}

static void call_dealloc(HotCall *self) {
    PyObject_GC_UnTrack(self);
    call_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#define MARK (METH_FASTCALL | METH_KEYWORDS)

static PyMethodDef call_methods[] = {
    {"mark", AS_METHOD(call_mark), MARK,
     "mark($self, /, recv_bytes=0, sent_bytes=0)\n--\n\nEnd the current stage; the last one is ended by the end of the block."},
    {"serialized", AS_METHOD(call_serialized), MARK,
     "serialized($self, /, sent_bytes)\n--\n\nRPC: the request is serialized; it has that many bytes."},
    {"sent", (PyCFunction)call_sent, METH_NOARGS, "sent($self, /)\n--\n\nRPC: the request is handed over."},
    {"received", AS_METHOD(call_received), MARK,
     "received($self, /, recv_bytes)\n--\n\nRPC: the reply is here; it has that many bytes."},
    {"_stamp", (PyCFunction)call_stamp_at, METH_O, "End the current stage at a given time."},
    {"_stamps", (PyCFunction)call_stamps, METH_NOARGS, "Return the ends of the stages so far."},
    {"_cut", (PyCFunction)call_cut, METH_O, "Forget all stamps behind the first so many."},
    {"_end", (PyCFunction)call_end_now, METH_NOARGS, "Make it ready for the next call, and free."},
    {"__enter__", (PyCFunction)call_enter, METH_NOARGS, NULL},
    {"__exit__", AS_METHOD(call_exit), METH_FASTCALL, NULL},
    {NULL},
};

static PyMemberDef call_members[] = {
    {"_site", T_OBJECT, offsetof(HotCall, site), READONLY, NULL},
    {"_begin_ns", T_LONGLONG, offsetof(HotCall, begin_ns), 0, NULL},
    {"_recorded", T_BOOL, offsetof(HotCall, recorded), 0, NULL},
    {"_noted", T_BOOL, offsetof(HotCall, noted), 0, NULL},
    {"_trace", T_OBJECT, offsetof(HotCall, trace), 0, NULL},
    {"_span", T_OBJECT, offsetof(HotCall, span), 0, NULL},
    {"sent_bytes", T_OBJECT, offsetof(HotCall, sent_bytes), 0, NULL},
    {"recv_bytes", T_OBJECT, offsetof(HotCall, recv_bytes), 0, NULL},
    {NULL},
};

PyTypeObject call_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotCall",
    .tp_doc = "The part of a call that every call goes through.",
    .tp_basicsize = sizeof(HotCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)call_init,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_methods = call_methods,
    .tp_members = call_members,
};

/* ---------------------------------------------------------------------------------------- a call that is not timed */

static int nothing_init(PyObject *self, PyObject *args, PyObject *kwargs) { return 0; }

static PyObject *nothing_mark(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    Py_RETURN_NONE;
}

static PyMethodDef nothing_methods[] = {
    {"mark", AS_METHOD(nothing_mark), MARK, "mark($self, /, recv_bytes=0, sent_bytes=0)\n--\n\nIgnore it."},
    {"serialized", AS_METHOD(nothing_mark), MARK, "serialized($self, /, sent_bytes)\n--\n\nIgnore it."},
    {"sent", AS_METHOD(nothing_mark), MARK, "sent($self, /)\n--\n\nIgnore it."},
    {"received", AS_METHOD(nothing_mark), MARK, "received($self, /, recv_bytes)\n--\n\nIgnore it."},
    {NULL},
};

PyTypeObject nothing_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotNothing",
    .tp_doc = "A call that is not timed: every mark is accepted, nothing happens.",
    .tp_base = &call_type,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_init = nothing_init,
    .tp_methods = nothing_methods,
};
