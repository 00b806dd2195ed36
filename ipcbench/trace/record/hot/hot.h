/* The hot path of a traced call, in C: what the Python files beside it define, with the same names and the same results.

   What does not live here: anything that is not needed at every call. What is out of the ordinary (a failure, a full
   segment, a note of buffers) goes to the methods of the subclasses, which are in Python.

   All of it runs under the GIL, without a step of Python between taking a slot and finishing its record: neither another
   thread nor a signal handler can come between. A build without the GIL does without this module. */

#ifndef IPCBENCH_TRACE_HOT_H
#define IPCBENCH_TRACE_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Raised with every change of what C and Python expect of one another; the same as in __init__.py. */
enum { CONTRACT = 1 };

enum { MAX_STAGES = 7, HEAD_BYTES = 16 }; /* as layout.py has them */

/* What it shares with layout.py, which is asked for it when the module is imported. */
typedef struct {
    int64_t header_bytes, record_bytes, marker, sum_cells, bin_count, bins_per_octave, sums_every;
} Layout;

extern Layout layout;

/* Structures begin with what every call needs: after a system call each line of cache is a wait. */

typedef struct {
    PyObject_HEAD
    char *bytes;  /* NULL once it is released */
    int64_t next; /* of slots: the offset of the first free one */
    int64_t limit;
    PyObject *buffer;
    Py_buffer view;
} Mapped;

typedef Mapped Slots;

/* The sums in the order of layout.PACK_SUMS, the count at its end excepted. */
enum { CALLS, FAILURES, SENT_BYTES, RECV_BYTES, TOTAL_NS, LONGEST_NS, STAGE_NS, SUMS_COUNT = STAGE_NS + MAX_STAGES };

typedef struct {
    Mapped mapped;
    uint64_t sums[SUMS_COUNT];
    bool at_second;
} Sums;

typedef struct HotCall HotCall;

typedef struct {
    PyObject_HEAD
    HotCall *spare;   /* the one call that is free, in nearly all applications */
    int64_t unseen;   /* calls from here that are counted */
    Slots *segment;
    int64_t slowest_ns;
    Sums *tally;
    int last;
    char always, blind;
    int heads_count;
    char heads_bytes[MAX_STAGES + 2][HEAD_BYTES];
    PyObject *heads, *kind, *nothing;
    PyObject *spares; /* a list of further ones */
    int64_t left;     /* calls behind those until the next recorded one, that one included */
    int64_t passed, counted; /* as `passed` says, plus what is left of both */
    int64_t period, look_ns;
    uint64_t random;
} HotSite;

struct HotCall {
    PyObject_HEAD
    HotSite *site;
    int64_t begin_ns; /* 0 while it is not under way */
    int marks;
    char recorded, noted;
    PyObject *sent_bytes, *recv_bytes, *trace, *span;
    int64_t ends_ns[MAX_STAGES + 1];
};

typedef struct {
    PyObject_HEAD
    PyObject *local, *rpc;
    PyObject *latest_entries; /* of the thread that made the latest call, so that most calls need not ask `local` */
    uint64_t latest_thread;   /* its id, which no other thread gets, ever */
    PyTypeObject *site_kind;  /* the class of the latest entry, to tell the next one quickly */
    bool is_per_thread;       /* whether `local` is Python's own; that of gevent is per greenlet */
} HotRecorder;

extern PyTypeObject slots_type, sums_type, site_type, call_type, nothing_type, recorder_type;

extern PyObject *zero;

/* The clock of time.monotonic_ns; module.c makes sure of it. */
static inline int64_t now_ns(void) {
#ifdef __APPLE__
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
#endif
}

/* Count one call in its tally, which must be open. */
void sums_count(Sums *self, int64_t begin_ns, const int64_t *ends_ns, int ends, uint64_t sent_bytes,
                uint64_t recv_bytes, bool failed);

/* Begin a call: a new reference. */
PyObject *site_begin(HotSite *self, PyObject *none);

#define AS_METHOD(function) ((PyCFunction)(void (*)(void))(function))

#endif
