/* Slots and HotHistograms: what is written into the mapped files. See python.py. */

#include "hot.h"

/* --------------------------------------------------------------------------------------------- mapped buffers */

static void mapped_drop(Mapped *self) {
    self->bytes = NULL;
    self->limit = 0;
    if (self->view.obj != NULL) PyBuffer_Release(&self->view);
}

/* Hold the buffer, which must have at least `least_bytes`. */
static int mapped_init(Mapped *self, PyObject *args, PyObject *kwargs, int64_t least_bytes) {
    static char *names[] = {"buffer", NULL};
    PyObject *buffer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &buffer)) return -1;
    mapped_drop(self);
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_WRITABLE) < 0) return -1;
    if (self->view.len < least_bytes) {
        mapped_drop(self);
        PyErr_SetString(PyExc_ValueError, "the buffer is too small");
        return -1;
    }
    Py_XSETREF(self->buffer, Py_NewRef(buffer));
    self->bytes = self->view.buf;
    self->limit = self->view.len;
    return 0;
}

static PyObject *mapped_release(Mapped *self, PyObject *Py_UNUSED(none)) {
    mapped_drop(self);
    Py_RETURN_NONE;
}

static int mapped_traverse(Mapped *self, visitproc visit, void *arg) {
    Py_VISIT(self->buffer);
    Py_VISIT(self->view.obj);
    return 0;
}

static int mapped_clear(Mapped *self) {
    mapped_drop(self);
    Py_CLEAR(self->buffer);
    return 0;
}

static void mapped_dealloc(Mapped *self) {
    PyObject_GC_UnTrack(self);
    mapped_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef histograms_members[] = {
    {"buffer", T_OBJECT, offsetof(Mapped, buffer), READONLY, NULL},
    {NULL},
};

/* --------------------------------------------------------------------------------------------- slots of a segment */

static int slots_init(Slots *self, PyObject *args, PyObject *kwargs) {
    self->next = layout.header_bytes;
    return mapped_init(self, args, kwargs, 0);
}

static PyObject *slots_take(Slots *self, PyObject *Py_UNUSED(none)) {
    int64_t offset = self->next;
    self->next += layout.record_bytes;
    return PyLong_FromLongLong(offset);
}

static PyMethodDef slots_methods[] = {
    {"take", (PyCFunction)slots_take, METH_NOARGS, "Return the offset of the next free slot; at `limit` or above there is none."},
    {"release", (PyCFunction)mapped_release, METH_NOARGS, "Release the buffer; no free slots remain."},
    {NULL},
};

static PyMemberDef slots_members[] = {
    {"buffer", T_OBJECT, offsetof(Mapped, buffer), READONLY, NULL},
    {"limit", T_LONGLONG, offsetof(Slots, limit), READONLY, NULL},
    {NULL},
};

PyTypeObject slots_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.Slots",
    .tp_doc = "The slots of a mapped file, taken one after the other.",
    .tp_basicsize = sizeof(Slots),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)slots_init,
    .tp_dealloc = (destructor)mapped_dealloc,
    .tp_traverse = (traverseproc)mapped_traverse,
    .tp_clear = (inquiry)mapped_clear,
    .tp_methods = slots_methods,
    .tp_members = slots_members,
};

/* --------------------------------------------------------------------------------------------- histograms of calls */

static inline int64_t bin_of(int64_t value_ns) {
    int bits = value_ns > 0 ? 64 - __builtin_clzll((uint64_t)value_ns) : 0;
    int octave = bits > 8 ? bits - 8 : 0;
    int64_t bin = octave * layout.bins_per_octave + (value_ns >> octave);
    return bin < layout.bin_count ? bin : layout.bin_count - 1;
}

/* Only one of the two copies is being written at any time: see format.PACK_SUMS. */
static void histograms_write(HotHistograms *self) {
    self->at_second = !self->at_second;
    uint64_t *place = histograms_cells(self) + (self->at_second ? layout.sum_cells / 2 : 1);
    for (int i = 0; i < SUMS_COUNT; i++) __atomic_store_n(place + i, self->sums[i], __ATOMIC_RELEASE);
    __atomic_store_n(place + SUMS_COUNT, self->sums[CALLS], __ATOMIC_RELEASE);
}

void histograms_count(HotHistograms *self, int64_t begin_ns, const int64_t *ends_ns, int ends, uint64_t sent_bytes,
                uint64_t recv_bytes, bool failed) {
    uint64_t *sums = self->sums;
    int64_t total_ns = ends_ns[ends - 1] - begin_ns;
    histograms_cells(self)[layout.sum_cells + bin_of(total_ns)]++;
    sums[CALLS]++;
    sums[FAILURES] += failed;
    sums[SENT_BYTES] += sent_bytes;
    sums[RECV_BYTES] += recv_bytes;
    sums[TOTAL_NS] += (uint64_t)total_ns;
    if ((uint64_t)total_ns > sums[LONGEST_NS]) sums[LONGEST_NS] = (uint64_t)total_ns;
    for (int i = 0; i < ends; i++) {
        sums[STAGE_NS + i] += (uint64_t)(ends_ns[i] - begin_ns);
        begin_ns = ends_ns[i];
    }
    if (failed || sums[CALLS] < (uint64_t)layout.sums_every || sums[CALLS] % (uint64_t)layout.sums_every == 0) histograms_write(self);
}

static int histograms_init(HotHistograms *self, PyObject *args, PyObject *kwargs) {
    return mapped_init(&self->mapped, args, kwargs, layout.header_bytes + 8 * (layout.sum_cells + layout.bin_count));
}

static bool histograms_is_open(HotHistograms *self) {
    if (self->mapped.bytes != NULL) return true;
    PyErr_SetString(PyExc_ValueError, "these histograms are closed");
    return false;
}

/* Return the number, which must be from 0 to 2^63 - 1; -1 with an error. */
static int64_t number_of_bytes(PyObject *object) {
    int64_t value = PyLong_AsLongLong(object);
    bool is_too_much = value == -1 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError);
    if (is_too_much || (value < 0 && !PyErr_Occurred())) {
        PyErr_SetString(PyExc_ValueError, "a number of bytes is negative or too large");
        return -1;
    }
    return value;
}

static PyObject *histograms_add(HotHistograms *self, PyObject *const *args, Py_ssize_t count) {
    int64_t ends_ns[MAX_STAGES];
    if (count != 6 || !PyList_Check(args[1]) || PyList_GET_SIZE(args[1]) >= MAX_STAGES) {
        PyErr_SetString(PyExc_TypeError, "add takes begin, a list of at most 6 ends, end, two numbers of bytes, and failed");
        return NULL;
    }
    int failed = PyObject_IsTrue(args[5]);
    int64_t sent_bytes = failed < 0 ? -1 : number_of_bytes(args[3]);
    int64_t recv_bytes = sent_bytes < 0 ? -1 : number_of_bytes(args[4]);
    if (recv_bytes < 0) return NULL;
    int64_t begin_ns = PyLong_AsLongLong(args[0]);
    int marks = 0; /* converting an item may run code that changes the list */
    while (marks < MAX_STAGES - 1 && marks < PyList_GET_SIZE(args[1]) && !PyErr_Occurred()) {
        PyObject *end = Py_NewRef(PyList_GET_ITEM(args[1], marks));
        ends_ns[marks++] = PyLong_AsLongLong(end);
        Py_DECREF(end);
    }
    ends_ns[marks] = PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (ends_ns[marks] < begin_ns) {
        PyErr_SetString(PyExc_ValueError, "a call ended before it began");
        return NULL;
    }
    if (!histograms_is_open(self)) return NULL;
    histograms_count(self, begin_ns, ends_ns, marks + 1, (uint64_t)sent_bytes, (uint64_t)recv_bytes, failed == 1);
    Py_RETURN_NONE;
}

static PyObject *histograms_add_untimed(HotHistograms *self, PyObject *calls_count) {
    uint64_t count = PyLong_AsUnsignedLongLong(calls_count);
    if (PyErr_Occurred() || !histograms_is_open(self)) return NULL;
    histograms_cells(self)[0] += count;
    Py_RETURN_NONE;
}

static PyObject *histograms_put(HotHistograms *self, PyObject *Py_UNUSED(none)) {
    if (!histograms_is_open(self)) return NULL;
    histograms_write(self);
    Py_RETURN_NONE;
}

static PyMethodDef histograms_methods[] = {
    {"add", AS_METHOD(histograms_add), METH_FASTCALL,
     "Add one call: its begin, the ends of all stages but the last (at most 6), its end, its bytes, and whether it failed."},
    {"add_untimed", (PyCFunction)histograms_add_untimed, METH_O, "Add a number of calls that were not timed."},
    {"put", (PyCFunction)histograms_put, METH_NOARGS, "Write the sums."},
    {"release", (PyCFunction)mapped_release, METH_NOARGS, "Release the buffer; nothing more can be added."},
    {NULL},
};

PyTypeObject histograms_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ipcbench.trace.record.hot._c.HotHistograms",
    .tp_doc = "The bins and sums of the calls of one method in one thread.",
    .tp_basicsize = sizeof(HotHistograms),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)histograms_init,
    .tp_dealloc = (destructor)mapped_dealloc,
    .tp_traverse = (traverseproc)mapped_traverse,
    .tp_clear = (inquiry)mapped_clear,
    .tp_methods = histograms_methods,
    .tp_members = histograms_members,
};
