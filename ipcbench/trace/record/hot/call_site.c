/* HotSite: which calls of a method are recorded. See site.py. */

#include "hot.h"

static int site_init(HotSite *self, PyObject *args, PyObject *kwargs) {
    PyObject *nothing;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "OK", &nothing, &seed)) return -1;
    Py_XSETREF(self->nothing, Py_NewRef(nothing));
    if (self->spares == NULL && (self->spares = PyList_New(0)) == NULL) return -1;
    self->random = seed;
    self->left = self->passed = self->period = 1;
    return 0;
}

static HotCall *site_free_call(HotSite *self) {
    HotCall *call = self->spare;
    if (self->kind == NULL || self->spares == NULL) {
        PyErr_SetString(PyExc_TypeError, "a site has a kind before its calls begin");
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
            PyErr_SetString(PyExc_TypeError, "the kind of a site is a HotCall");
            return NULL;
        }
        call = (HotCall *)Py_NewRef(PyList_GET_ITEM(self->spares, count - 1));
        if (PyList_SetSlice(self->spares, count - 1, count, NULL) < 0) Py_CLEAR(call);
    }
    return call;
}

/* A number from 0 to 1, 1 excluded: SplitMix64, from Steele, Lea and Flood, "Fast splittable pseudorandom number
   generators" (2014). */
static double site_random(HotSite *self) {
    uint64_t mixed = self->random += UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94D049BB133111EB);
    return (double)((mixed ^ mixed >> 31) >> 11) * 0x1p-53;
}

static void site_draw(HotSite *self) {
    int64_t count = 1 + (int64_t)(site_random(self) * (double)(2 * self->period - 1));
    int64_t unseen = self->blind ? count - 1 : 0;
    self->passed += count - self->unseen - self->left;
    self->counted += unseen - self->unseen;
    self->unseen = unseen;
    self->left = count - unseen;
}

PyObject *site_begin(HotSite *self, PyObject *Py_UNUSED(none)) {
    if (self->unseen > 0 && self->nothing != NULL) {
        self->unseen--;
        return Py_NewRef(self->nothing);
    }
    HotCall *call = site_free_call(self);
    if (call == NULL) return NULL;
    call->recorded = self->always || --self->left <= 0;
    if (call->recorded && !self->always) {
        if (now_ns() >= self->look_ns) {
            PyObject *looked = PyObject_CallMethod((PyObject *)self, "look", NULL);
            if (looked == NULL) Py_CLEAR(call);
            Py_XDECREF(looked);
        }
        if (self->left <= 0) site_draw(self);
    }
    return (PyObject *)call;
}

static PyObject *site_draw_now(HotSite *self, PyObject *Py_UNUSED(none)) {
    site_draw(self);
    Py_RETURN_NONE;
}

static PyObject *site_passed(HotSite *self, PyObject *Py_UNUSED(none)) {
    int64_t passed = self->passed - self->unseen - self->left, counted = self->counted - self->unseen;
    self->passed -= passed;
    self->counted -= counted;
    return Py_BuildValue("LL", (long long)passed, (long long)counted);
}

static int site_traverse(HotSite *self, visitproc visit, void *arg) {
    Py_VISIT(self->kind);
    Py_VISIT(self->segment);
    Py_VISIT(self->heads);
    Py_VISIT(self->tally);
    Py_VISIT(self->nothing);
    Py_VISIT(self->spare);
    Py_VISIT(self->spares);
    return 0;
}

static int site_clear(HotSite *self) {
    Py_CLEAR(self->kind);
    Py_CLEAR(self->segment);
    Py_CLEAR(self->heads);
    Py_CLEAR(self->tally);
    Py_CLEAR(self->nothing);
    Py_CLEAR(self->spare);
    Py_CLEAR(self->spares);
    return 0;
}

static void site_dealloc(HotSite *self) {
    PyObject_GC_UnTrack(self);
    site_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef site_methods[] = {
    {"begin", (PyCFunction)site_begin, METH_NOARGS,
     "Return a call that was not under way, and decide whether it is recorded; or what stands for one counted."},
    {"draw", (PyCFunction)site_draw_now, METH_NOARGS, "Choose how many calls it is until the next recorded one."},
    {"passed", (PyCFunction)site_passed, METH_NOARGS,
     "Return how many calls there were since this was last asked, and how many of them were only counted."},
    {NULL},
};

static PyObject *or_none(void *one) { return Py_NewRef(one == NULL ? Py_None : (PyObject *)one); }

static PyObject *site_get_segment(HotSite *self, void *Py_UNUSED(none)) { return or_none(self->segment); }

static PyObject *site_get_tally(HotSite *self, void *Py_UNUSED(none)) { return or_none(self->tally); }

static PyObject *site_get_heads(HotSite *self, void *Py_UNUSED(none)) { return or_none(self->heads); }

/* Set a place to an object of a class, or to None. */
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

static int site_set_segment(HotSite *self, PyObject *value, void *Py_UNUSED(none)) {
    return set_place((PyObject **)&self->segment, value, &slots_type);
}

static int site_set_tally(HotSite *self, PyObject *value, void *Py_UNUSED(none)) {
    return set_place((PyObject **)&self->tally, value, &sums_type);
}

static int site_set_heads(HotSite *self, PyObject *value, void *Py_UNUSED(none)) {
    Py_ssize_t count = value != NULL && PyTuple_Check(value) ? PyTuple_GET_SIZE(value) : -1;
    bool is_right = 0 <= count && count <= MAX_STAGES + 1;
    for (Py_ssize_t i = 0; i < count && is_right; i++) {
        PyObject *one = PyTuple_GET_ITEM(value, i);
        is_right = PyBytes_Check(one) && PyBytes_GET_SIZE(one) == HEAD_BYTES;
    }
    if (!is_right) {
        PyErr_Format(PyExc_TypeError, "heads are a tuple of at most %d times %d bytes", MAX_STAGES + 1, HEAD_BYTES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(self->heads_bytes[i], PyBytes_AS_STRING(PyTuple_GET_ITEM(value, i)), HEAD_BYTES);
    self->heads_count = (int)count;
    Py_XSETREF(self->heads, Py_NewRef(value));
    return 0;
}

static PyGetSetDef site_places[] = {
    {"segment", (getter)site_get_segment, (setter)site_set_segment, NULL, NULL},
    {"tally", (getter)site_get_tally, (setter)site_set_tally, NULL, NULL},
    {"heads", (getter)site_get_heads, (setter)site_set_heads, NULL, NULL},
    {NULL},
};

static PyMemberDef site_members[] = {
    {"kind", T_OBJECT, offsetof(HotSite, kind), 0, NULL},
    {"period", T_LONGLONG, offsetof(HotSite, period), 0, NULL},
    {"look_ns", T_LONGLONG, offsetof(HotSite, look_ns), 0, NULL},
    {"slowest_ns", T_LONGLONG, offsetof(HotSite, slowest_ns), 0, NULL},
    {"last", T_INT, offsetof(HotSite, last), 0, NULL},
    {"always", T_BOOL, offsetof(HotSite, always), 0, NULL},
    {"blind", T_BOOL, offsetof(HotSite, blind), 0, NULL},
    {NULL},
};

PyTypeObject site_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotSite",
    .tp_doc = "One method in one thread: what its calls need at once.",
    .tp_basicsize = sizeof(HotSite),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)site_init,
    .tp_dealloc = (destructor)site_dealloc,
    .tp_traverse = (traverseproc)site_traverse,
    .tp_clear = (inquiry)site_clear,
    .tp_methods = site_methods,
    .tp_members = site_members,
    .tp_getset = site_places,
};
