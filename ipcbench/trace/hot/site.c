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

static PyMemberDef site_members[] = {
    {"kind", T_OBJECT, offsetof(HotSite, kind), 0, NULL},
    {"segment", T_OBJECT, offsetof(HotSite, segment), 0, NULL},
    {"heads", T_OBJECT, offsetof(HotSite, heads), 0, NULL},
    {"tally", T_OBJECT, offsetof(HotSite, tally), 0, NULL},
    {"period", T_LONGLONG, offsetof(HotSite, period), 0, NULL},
    {"look_ns", T_LONGLONG, offsetof(HotSite, look_ns), 0, NULL},
    {"slowest_ns", T_LONGLONG, offsetof(HotSite, slowest_ns), 0, NULL},
    {"last", T_INT, offsetof(HotSite, last), 0, NULL},
    {"always", T_BOOL, offsetof(HotSite, always), 0, NULL},
    {"blind", T_BOOL, offsetof(HotSite, blind), 0, NULL},
    {NULL},
};

PyTypeObject site_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.hot._c.HotSite",
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
};
