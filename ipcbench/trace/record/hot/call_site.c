/* HotCallSite: which calls of a method are recorded. See python.py. */

#include "hot.h"

static int call_site_init(HotCallSite *self, PyObject *args, PyObject *kwargs) {
    PyObject *no_op;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "OK", &no_op, &seed)) return -1;
    Py_XSETREF(self->no_op, Py_NewRef(no_op));
    if (self->spares == NULL && (self->spares = PyList_New(0)) == NULL) return -1;
    self->random = seed;
    self->timed_left = self->passed = self->period = 1;
    return 0;
}

static HotCall *call_site_free_call(HotCallSite *self) {
    HotCall *call = self->spare;
    if (self->kind == NULL || self->spares == NULL) {
        PyErr_SetString(PyExc_TypeError, "the kind of a call site must be set before its calls begin");
        return NULL;
    }
    self->spare = NULL;
    if (call == NULL) {
        Py_ssize_t count = PyList_GET_SIZE(self->spares);
        if (count == 0) {
            PyObject *kind = Py_NewRef(self->kind);
            call = (HotCall *)PyObject_CallOneArg(kind, (PyObject *)self);
            Py_DECREF(kind);
            if (call == NULL || PyObject_TypeCheck((PyObject *)call, &call_type)) return call;
            Py_DECREF(call);
            PyErr_SetString(PyExc_TypeError, "the kind of a call site must be a subclass of HotCall");
            return NULL;
        }
        call = (HotCall *)Py_NewRef(PyList_GET_ITEM(self->spares, count - 1));
        if (PyList_SetSlice(self->spares, count - 1, count, NULL) < 0) Py_CLEAR(call);
    }
    return call;
}

/* Return a number from 0 to 1, 1 excluded: SplitMix64, from Steele, Lea and Flood, "Fast splittable pseudorandom number
   generators" (2014). */
static double call_site_random(HotCallSite *self) {
    uint64_t mixed = self->random += UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((mixed ^ mixed >> 31) >> 11) * 0x1p-53;
}

enum { LATE_CHOICE = 8 }; /* as in format.py */

static void call_site_draw(HotCallSite *self) {
    int64_t count = 1 + (int64_t)(call_site_random(self) * (double)(2 * self->period - 1));
    int64_t untimed_count = self->untimed ? count - 1 : 0;
    self->passed += count - self->untimed_left - self->timed_left;
    self->counted += untimed_count - self->untimed_left;
    self->untimed_left = untimed_count;
    self->timed_left = count - untimed_count;
}

/* Time one of the next calls: since the latest look, calls have become rarer, or longer. */
static bool call_site_be_late(HotCallSite *self) {
    int64_t left = (int64_t)(call_site_random(self) * LATE_CHOICE);
    self->late_ns = 0;
    PyObject *done = PyObject_CallMethod((PyObject *)self, "be_late", NULL);
    Py_XDECREF(done);
    if (left < self->untimed_left) {
        self->passed -= self->untimed_left - left;
        self->counted -= self->untimed_left - left;
        self->untimed_left = left;
    }
    return done != NULL;
}

/* Begin a call that is timed like others, and then discarded: it is only counted. The next one is timed in earnest, and
   should find what it needs in the caches, as the calls do for which it stands. */
static PyObject *call_site_warm_up(HotCallSite *self) {
    HotCall *call = call_site_free_call(self);
    if (call == NULL) return NULL;
    call->recorded = 0;
    call->warm_up = 1;
    return (PyObject *)call;
}

PyObject *call_site_begin(HotCallSite *self, PyObject *Py_UNUSED(none)) {
    if (self->untimed_left > 0 && self->no_op != NULL) {
        HotHistograms *histograms = self->histograms;
        if (self->late_ns && coarse_now_ns() >= self->late_ns && !call_site_be_late(self)) return NULL;
        if (self->untimed_left > 0) {
            self->untimed_left--;
            if (histograms != NULL && histograms->mapped.bytes != NULL) histograms_cells(histograms)[0]++;
            else self->unstored++;
            return self->untimed_left > 0 ? Py_NewRef(self->no_op) : call_site_warm_up(self);
        }
    }
    HotCall *call = call_site_free_call(self);
    if (call == NULL) return NULL;
    call->warm_up = 0;
    call->recorded = self->always || --self->timed_left <= 0;
    if (call->recorded && !self->always) call_site_draw(self);
    return (PyObject *)call;
}

static PyObject *call_site_draw_now(HotCallSite *self, PyObject *Py_UNUSED(none)) {
    call_site_draw(self);
    Py_RETURN_NONE;
}

static PyObject *call_site_restart(HotCallSite *self, PyObject *Py_UNUSED(none)) {
    self->untimed_left = self->counted = self->unstored = self->late_ns = 0;
    self->timed_left = self->passed = 1;
    Py_RETURN_NONE;
}

static PyObject *call_site_take_unstored(HotCallSite *self, PyObject *Py_UNUSED(none)) {
    int64_t unstored = self->unstored;
    self->unstored = 0;
    return PyLong_FromLongLong(unstored);
}

static PyObject *call_site_passed(HotCallSite *self, PyObject *Py_UNUSED(none)) {
    int64_t passed = self->passed - self->untimed_left - self->timed_left;
    int64_t counted = self->counted - self->untimed_left;
    self->passed -= passed;
    self->counted -= counted;
    return Py_BuildValue("LL", (long long)passed, (long long)counted);
}

static int call_site_traverse(HotCallSite *self, visitproc visit, void *arg) {
    Py_VISIT(self->kind);
    Py_VISIT(self->segment);
    Py_VISIT(self->heads);
    Py_VISIT(self->histograms);
    Py_VISIT(self->no_op);
    Py_VISIT(self->spare);
    Py_VISIT(self->spares);
    return 0;
}

static int call_site_clear(HotCallSite *self) {
    Py_CLEAR(self->kind);
    Py_CLEAR(self->segment);
    Py_CLEAR(self->heads);
    Py_CLEAR(self->histograms);
    Py_CLEAR(self->no_op);
    Py_CLEAR(self->spare);
    Py_CLEAR(self->spares);
    return 0;
}

static void call_site_dealloc(HotCallSite *self) {
    PyObject_GC_UnTrack(self);
    call_site_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef call_site_methods[] = {
    {"begin", (PyCFunction)call_site_begin, METH_NOARGS,
     "Return a free call and decide whether it is recorded; return the no-op for a call that is only counted."},
    {"draw", (PyCFunction)call_site_draw_now, METH_NOARGS, "Choose the distance to the next recorded call."},
    {"restart", (PyCFunction)call_site_restart, METH_NOARGS, "Begin anew, with a call that is timed."},
    {"take_unstored", (PyCFunction)call_site_take_unstored, METH_NOARGS,
     "Return how many calls were only counted since the last time, while there were no histograms to count them in."},
    {"passed", (PyCFunction)call_site_passed, METH_NOARGS,
     "Return how many calls there were since the last time, and how many of them were only counted."},
    {NULL},
};

static PyObject *or_none(void *object) { return Py_NewRef(object == NULL ? Py_None : (PyObject *)object); }

static PyObject *call_site_get_segment(HotCallSite *self, void *Py_UNUSED(none)) { return or_none(self->segment); }

static PyObject *call_site_get_histograms(HotCallSite *self, void *Py_UNUSED(none)) { return or_none(self->histograms); }

static PyObject *call_site_get_heads(HotCallSite *self, void *Py_UNUSED(none)) { return or_none(self->heads); }

/* Set *place to an instance of `kind`, or to None. */
static int set_place(PyObject **place, PyObject *value, PyTypeObject *kind) {
    if (value == Py_None || value == NULL) {
        Py_CLEAR(*place);
    } else if (PyObject_TypeCheck(value, kind)) {
        Py_XSETREF(*place, Py_NewRef(value));
    } else {
        PyErr_Format(PyExc_TypeError, "it must be a %s or None", kind->tp_name);
        return -1;
    }
    return 0;
}

static int call_site_set_segment(HotCallSite *self, PyObject *value, void *Py_UNUSED(none)) {
    return set_place((PyObject **)&self->segment, value, &slots_type);
}

static int call_site_set_histograms(HotCallSite *self, PyObject *value, void *Py_UNUSED(none)) {
    return set_place((PyObject **)&self->histograms, value, &histograms_type);
}

static int call_site_set_heads(HotCallSite *self, PyObject *value, void *Py_UNUSED(none)) {
    Py_ssize_t count = value != NULL && PyTuple_Check(value) ? PyTuple_GET_SIZE(value) : -1;
    bool is_right = 0 <= count && count <= MAX_STAGES + 1;
    for (Py_ssize_t i = 0; i < count && is_right; i++) {
        PyObject *head = PyTuple_GET_ITEM(value, i);
        is_right = PyBytes_Check(head) && PyBytes_GET_SIZE(head) == HEAD_BYTES;
    }
    if (!is_right) {
        PyErr_Format(PyExc_TypeError, "heads must be a tuple of at most %d objects of %d bytes", MAX_STAGES + 1, HEAD_BYTES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(self->heads_bytes[i], PyBytes_AS_STRING(PyTuple_GET_ITEM(value, i)), HEAD_BYTES);
    self->heads_count = (int)count;
    Py_XSETREF(self->heads, Py_NewRef(value));
    return 0;
}

static PyGetSetDef call_site_places[] = {
    {"segment", (getter)call_site_get_segment, (setter)call_site_set_segment, NULL, NULL},
    {"histograms", (getter)call_site_get_histograms, (setter)call_site_set_histograms, NULL, NULL},
    {"heads", (getter)call_site_get_heads, (setter)call_site_set_heads, NULL, NULL},
    {NULL},
};

static PyMemberDef call_site_members[] = {
    {"kind", T_OBJECT, offsetof(HotCallSite, kind), 0, NULL},
    {"period", T_LONGLONG, offsetof(HotCallSite, period), 0, NULL},
    {"look_ns", T_LONGLONG, offsetof(HotCallSite, look_ns), 0, NULL},
    {"late_ns", T_LONGLONG, offsetof(HotCallSite, late_ns), 0, NULL},
    {"slowest_ns", T_LONGLONG, offsetof(HotCallSite, slowest_ns), 0, NULL},
    {"last_stage", T_INT, offsetof(HotCallSite, last_stage), 0, NULL},
    {"always", T_BOOL, offsetof(HotCallSite, always), 0, NULL},
    {"untimed", T_BOOL, offsetof(HotCallSite, untimed), 0, NULL},
    {NULL},
};

PyTypeObject call_site_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotCallSite",
    .tp_doc = "One method in one thread: which of its calls are recorded, and what they need at once.",
    .tp_basicsize = sizeof(HotCallSite),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)call_site_init,
    .tp_dealloc = (destructor)call_site_dealloc,
    .tp_traverse = (traverseproc)call_site_traverse,
    .tp_clear = (inquiry)call_site_clear,
    .tp_methods = call_site_methods,
    .tp_members = call_site_members,
    .tp_getset = call_site_places,
};
