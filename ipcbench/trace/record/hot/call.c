/* HotCall and HotNoOp: the stages of a call, and its record. See python.py. */

#include "hot.h"

enum { BEGIN_AT = 40 }; /* as in format.PACKERS */

static inline bool is_none(const PyObject *object) { return object == NULL || object == Py_None; }

static int call_init(HotCall *self, PyObject *args, PyObject *kwargs) {
    HotCallSite *call_site;
    if (!PyArg_ParseTuple(args, "O!", &call_site_type, &call_site)) return -1;
    Py_XSETREF(self->call_site, (HotCallSite *)Py_NewRef(call_site));
    Py_XSETREF(self->sent_bytes, Py_NewRef(zero));
    Py_XSETREF(self->recv_bytes, Py_NewRef(zero));
    Py_XSETREF(self->span, Py_NewRef(zero));
    return 0;
}

static inline void call_stamp(HotCall *self, int64_t at_ns) {
    if (self->marks <= MAX_STAGES) self->ends_ns[self->marks++] = at_ns; /* one more than any schema has: an overrun */
}

static bool is_truthy(PyObject *object) {
    int is_true = object == zero || is_none(object) ? 0 : PyObject_IsTrue(object);
    if (is_true < 0) PyErr_Clear();
    return is_true != 0;
}

/* Add a number of bytes of any type; what is not a number fails when the record is written. */
static void add_bytes(PyObject **place, PyObject *more) {
    if (*place == zero && PyLong_CheckExact(more)) {
        Py_SETREF(*place, Py_NewRef(more));
        return;
    }
    PyObject *old = Py_XNewRef(*place); /* the addition may run code that changes *place */
    PyObject *sum = PyNumber_Index(more);
    if (is_truthy(old)) {
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

/* Reset the call and make it free for reuse. */
static void call_end(HotCall *self) {
    self->marks = 0;
    self->noted = self->sized = 0;
    reset(&self->sent_bytes, zero);
    reset(&self->recv_bytes, zero);
    reset(&self->trace, Py_None);
    reset(&self->span, zero);
    HotCallSite *call_site = self->call_site;
    if (call_site == NULL || self->begin_ns == 0) return; /* a call that ends twice is freed once */
    self->begin_ns = 0;
    if (call_site->spare == NULL) {
        call_site->spare = (HotCall *)Py_NewRef(self);
    } else if (PyList_Append(call_site->spares, (PyObject *)self) < 0) {
        PyErr_Clear();
    }
}

bool find_arguments(PyObject *const *args, Py_ssize_t count, PyObject *named, const char *const *names, int limit,
                    PyObject **values) {
    Py_ssize_t named_count = named == NULL ? 0 : PyTuple_GET_SIZE(named);
    for (Py_ssize_t i = 0; i < count && i < limit; i++) values[i] = args[i];
    bool right = count <= limit;
    for (Py_ssize_t i = 0; i < named_count && right; i++) {
        int place = 0;
        while (place < limit && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(named, i), names[place]) != 0) place++;
        right = place < limit && place >= count;
        if (right) values[place] = args[count + i];
    }
    return right;
}

/* Find the arguments of a mark. */
static bool arguments(PyObject *const *args, Py_ssize_t count, PyObject *named, const char *const *names, int limit,
                      PyObject **values) {
    bool right = find_arguments(args, count, named, names, limit, values);
    if (!right) PyErr_SetString(PyExc_TypeError, "a mark takes recv_bytes and sent_bytes at most");
    return right;
}

static PyObject *call_mark(HotCall *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    static const char *const names[] = {"recv_bytes", "sent_bytes"};
    int64_t at_ns = now_ns();
    PyObject *values[2] = {zero, zero};
    if (!arguments(args, count, named, names, 2, values)) return NULL;
    call_stamp(self, at_ns);
    if (is_truthy(values[0])) add_bytes(&self->recv_bytes, values[0]);
    if (is_truthy(values[1])) add_bytes(&self->sent_bytes, values[1]);
    Py_RETURN_NONE;
}

static PyObject *mark_with_bytes(HotCall *self, PyObject **place, const char *name, PyObject *const *args,
                                 Py_ssize_t count, PyObject *named) {
    int64_t at_ns = now_ns();
    PyObject *value = NULL;
    if (!arguments(args, count, named, &name, 1, &value)) return NULL;
    if (value == NULL) {
        PyErr_Format(PyExc_TypeError, "%s is missing", name);
        return NULL;
    }
    call_stamp(self, at_ns);
    self->sized = 1;
    if (value != zero || *place != zero) add_bytes(place, value);
    Py_RETURN_NONE;
}

static PyObject *call_serialized(HotCall *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    return mark_with_bytes(self, &self->sent_bytes, "sent_bytes", args, count, named);
}

static PyObject *call_received(HotCall *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    return mark_with_bytes(self, &self->recv_bytes, "recv_bytes", args, count, named);
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
        PyObject *stamp = PyLong_FromLongLong(self->ends_ns[i]);
        if (stamp == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, stamp);
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

/* Return whether a record can hold this number; no error stays set. */
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
    HotCallSite *call_site = self->call_site;
    Slots *slots = call_site->segment;
    uint64_t ids[3] = {0, 0, 0};
    if (!is_none(self->trace) && !(PyTuple_Check(self->trace) && PyTuple_GET_SIZE(self->trace) == 2 &&
                                   to_uint64(PyTuple_GET_ITEM(self->trace, 0), ids) &&
                                   to_uint64(PyTuple_GET_ITEM(self->trace, 1), ids + 1) && to_uint64(self->span, ids + 2)))
        return false;
    int ends = self->marks + 1;
    if (slots == NULL || ends >= call_site->heads_count) return false;
    int64_t offset = slots->next;
    if (offset + layout.record_bytes > slots->limit) return false;
    slots->next = offset + layout.record_bytes;
    char *record = slots->bytes + offset;
    memcpy(record, call_site->heads_bytes[ends], HEAD_BYTES);
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

PyObject *call_end_at(HotCall *self, int64_t end_ns, PyObject *kind) {
    int64_t total_ns = end_ns - self->begin_ns;
    HotCallSite *call_site = self->call_site;
    uint64_t sent_bytes, recv_bytes;
    if (self->begin_ns == 0) Py_RETURN_NONE;
    if (self->warm_up) {
        call_end(self);
        Py_RETURN_NONE;
    }
    if (kind == Py_None && !self->noted && call_site != NULL && self->marks <= call_site->last_stage &&
        self->marks < MAX_STAGES && to_uint64(self->sent_bytes, &sent_bytes) && to_uint64(self->recv_bytes, &recv_bytes) &&
        !(self->sized && sent_bytes == 0 && recv_bytes == 0)) {
        bool done;
        self->ends_ns[self->marks] = end_ns;
        if (self->recorded) {
            done = call_write(self, sent_bytes, recv_bytes);
            if (done && total_ns > call_site->slowest_ns) call_site->slowest_ns = total_ns;
        } else {
            HotHistograms *histograms = call_site->histograms;
            done = 0 <= total_ns && total_ns <= call_site->slowest_ns && histograms != NULL &&
                   histograms->mapped.bytes != NULL && sent_bytes <= INT64_MAX && recv_bytes <= INT64_MAX;
            if (done)
                histograms_count(histograms, self->begin_ns, self->ends_ns, self->marks + 1, sent_bytes, recv_bytes, false);
        }
        if (done) {
            const bool looks = !call_site->always && end_ns >= call_site->look_ns;
            call_end(self);
            if (looks) return PyObject_CallMethod((PyObject *)call_site, "look", NULL);
            Py_RETURN_NONE;
        }
    }
    return PyObject_CallMethod((PyObject *)self, "_leave", "LO", (long long)end_ns, kind);
}

static PyObject *call_exit(HotCall *self, PyObject *const *args, Py_ssize_t count) {
    return call_end_at(self, now_ns(), count > 0 ? args[0] : Py_None);
}

/* _finish(begin_ns, end_ns): end a call that lasted from one time to another, without an error. */
static PyObject *call_finish(HotCall *self, PyObject *const *args, Py_ssize_t count) {
    int64_t begin_ns = count == 2 ? PyLong_AsLongLong(args[0]) : 0, end_ns = count == 2 ? PyLong_AsLongLong(args[1]) : 0;
    if (count != 2 && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "it takes two times");
    if (PyErr_Occurred()) return NULL;
    self->begin_ns = begin_ns;
    return call_end_at(self, end_ns, Py_None);
}

static int call_traverse(HotCall *self, visitproc visit, void *arg) {
    Py_VISIT(self->call_site);
    Py_VISIT(self->trace);
    Py_VISIT(self->span);
    Py_VISIT(self->sent_bytes);
    Py_VISIT(self->recv_bytes);
    return 0;
}

static int call_clear(HotCall *self) {
    Py_CLEAR(self->call_site);
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
     "mark($self, /, recv_bytes=0, sent_bytes=0)\n--\n\nEnd the current stage; the end of the block ends the last one."},
    {"serialized", AS_METHOD(call_serialized), MARK,
     "serialized($self, /, sent_bytes)\n--\n\nRPC: the request is serialized and has this size."},
    {"sent", (PyCFunction)call_sent, METH_NOARGS, "sent($self, /)\n--\n\nRPC: the request has been sent."},
    {"received", AS_METHOD(call_received), MARK,
     "received($self, /, recv_bytes)\n--\n\nRPC: the reply is here and has this size."},
    {"_stamp", (PyCFunction)call_stamp_at, METH_O, "End the current stage at a given time."},
    {"_stamps", (PyCFunction)call_stamps, METH_NOARGS, "Return the ends of the stages so far."},
    {"_cut", (PyCFunction)call_cut, METH_O, "Forget all stamps after the first `count`."},
    {"_end", (PyCFunction)call_end_now, METH_NOARGS, "Reset the call and make it free for reuse."},
    {"_finish", AS_METHOD(call_finish), METH_FASTCALL, "End a call that lasted from one time to another, without an error."},
    {"__enter__", (PyCFunction)call_enter, METH_NOARGS, NULL},
    {"__exit__", AS_METHOD(call_exit), METH_FASTCALL, NULL},
    {NULL},
};

static PyMemberDef call_members[] = {
    {"_call_site", T_OBJECT, offsetof(HotCall, call_site), READONLY, NULL},
    {"_begin_ns", T_LONGLONG, offsetof(HotCall, begin_ns), 0, NULL},
    {"_recorded", T_BOOL, offsetof(HotCall, recorded), 0, NULL},
    {"_warm_up", T_BOOL, offsetof(HotCall, warm_up), 0, NULL},
    {"_sized", T_BOOL, offsetof(HotCall, sized), 0, NULL},
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

static int no_op_init(PyObject *self, PyObject *args, PyObject *kwargs) { return 0; }

static PyObject *no_op_mark(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    Py_RETURN_NONE;
}

static PyMethodDef no_op_methods[] = {
    {"mark", AS_METHOD(no_op_mark), MARK, "mark($self, /, recv_bytes=0, sent_bytes=0)\n--\n\nDo nothing."},
    {"serialized", AS_METHOD(no_op_mark), MARK, "serialized($self, /, sent_bytes)\n--\n\nDo nothing."},
    {"sent", AS_METHOD(no_op_mark), MARK, "sent($self, /)\n--\n\nDo nothing."},
    {"received", AS_METHOD(no_op_mark), MARK, "received($self, /, recv_bytes)\n--\n\nDo nothing."},
    {NULL},
};

PyTypeObject no_op_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotNoOp",
    .tp_doc = "A call that is not timed: every mark is accepted, nothing happens.",
    .tp_base = &call_type,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_init = no_op_init,
    .tp_methods = no_op_methods,
};
