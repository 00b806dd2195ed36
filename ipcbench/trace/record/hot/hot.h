/* The hot path of a traced call in C: the counterpart of python.py, with the same names and the same results.

   Only what every call needs is here. The rare cases (a failure, a full segment, a note of buffers) go to methods of the
   subclasses, which are in Python.

   All of it runs under the GIL, and no Python code runs between taking a slot and finishing its record: neither another
   thread nor a signal handler can come between. A build without the GIL does not use this module. */

#ifndef IPCBENCH_TRACE_HOT_H
#define IPCBENCH_TRACE_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* Increased whenever C and Python expect something else of each other; the same as in __init__.py. */
enum { CONTRACT = 11 };

enum { MAX_STAGES = 7, HEAD_BYTES = 16 }; /* as in format.py */

/* What format.py defines; read when the module is imported. */
typedef struct {
    int64_t header_bytes, record_bytes, marker, sum_cells, bin_count, bins_per_octave, sums_every;
} Layout;

extern Layout layout;

/* Structures begin with what every call needs: after a system call, every cache line costs a miss. */

typedef struct {
    PyObject_HEAD
    char *bytes;  /* NULL once released */
    int64_t next; /* of slots: the offset of the next free one */
    int64_t limit;
    PyObject *buffer;
    Py_buffer view;
} Mapped;

typedef Mapped Slots;

/* The sums in the order of format.PACK_SUMS, without the count at its end. */
enum { CALLS, FAILURES, SENT_BYTES, RECV_BYTES, TOTAL_NS, LONGEST_NS, STAGE_NS, SUMS_COUNT = STAGE_NS + MAX_STAGES };

typedef struct {
    Mapped mapped;
    uint64_t sums[SUMS_COUNT];
    bool at_second;
} HotHistograms;

typedef struct HotCall HotCall;

typedef struct {
    PyObject_HEAD
    HotCall *spare;       /* a free call; hardly any application needs more than this one */
    int64_t untimed_left; /* how many of the next calls are only counted */
    Slots *segment;
    int64_t slowest_ns;
    HotHistograms *histograms;
    int last_stage;
    char always, untimed;
    int heads_count;
    char heads_bytes[MAX_STAGES + 2][HEAD_BYTES];
    PyObject *heads, *kind, *no_op;
    PyObject *spares;        /* a list of further free calls */
    int64_t timed_left;      /* how many calls follow the untimed ones, up to and including the next recorded one */
    int64_t passed, counted; /* what `passed` returns, plus what is left of both */
    int64_t period, look_ns;
    int64_t late_ns;     /* when the next look is overdue; 0 if it cannot be */
    int64_t unstored;    /* calls that were only counted, while there were no histograms */
    uint64_t random;
} HotCallSite;

struct HotCall {
    PyObject_HEAD
    HotCallSite *call_site;
    int64_t begin_ns; /* 0 while it is not under way */
    int marks;
    char recorded, noted, sized, warm_up;
    PyObject *sent_bytes, *recv_bytes, *trace, *span;
    int64_t ends_ns[MAX_STAGES + 1];
};

typedef struct {
    PyObject_HEAD
    PyObject *local, *rpc;
    PyObject *latest_entries; /* those of `latest_thread`, so that most calls need not look into `local` */
    uint64_t latest_thread;   /* the id of the thread of the latest call; ids are never reused */
    PyTypeObject *call_site_kind;  /* the class of the latest entry, to recognise the next one quickly */
} HotRecorder;

typedef struct {
    PyObject_HEAD
    union {
        struct {
            PyObject *method, *peer, *open, *serving, *carried, *context, *sending, *pairs, *sent_frames, *received_frames,
                *pending, *latest_recorder, *latest_schema, *latest_call_site;
        };
        PyObject *objects[14]; /* the same, each NULL or an object */
    };
    uint64_t latest_thread; /* of the latest call, as its recorder, schema and call site: most calls are like the one before */
    int64_t asked_ns, begun_ns, received_ns, sent_bytes, recv_bytes;
    int kind, protocols;
    char propagate, is_ordinary, is_partial;
} HotTraffic;

enum { ONE_WAY, REQUESTS, REPLIES };      /* kinds, as in messages.py */
enum { ANY = 1, JUPYTER = 2, ENVELOPE = 4 }; /* protocols, as in correlate.py */

extern PyTypeObject slots_type, histograms_type, call_site_type, call_type, no_op_type, recorder_type, traffic_type;

extern PyObject *zero;

/* The clock of time.monotonic_ns; module.c checks that. */
static inline int64_t now_ns(void) {
#ifdef __APPLE__
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
#endif
}

/* The same, quickly and up to some ms late. */
static inline int64_t coarse_now_ns(void) {
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
#else
    return now_ns();
#endif
}

/* The cells behind the header of histograms, which must be open; the first counts the calls that were not timed. */
static inline uint64_t *histograms_cells(HotHistograms *self) { return (uint64_t *)(self->mapped.bytes + layout.header_bytes); }

/* Add one call to its histograms, which must be open. */
void histograms_count(HotHistograms *self, int64_t begin_ns, const int64_t *ends_ns, int ends, uint64_t sent_bytes,
                uint64_t recv_bytes, bool failed);

/* Begin a call: a new reference. */
PyObject *call_site_begin(HotCallSite *self, PyObject *none);

/* Return the call site of a method, a schema and a peer in this thread, a new reference; NULL without an error if there is
   none yet. */
PyObject *recorder_call_site(HotRecorder *self, PyObject *const *args);

/* End a call at a time, with the class of its error or None: a new reference, or NULL with an error. */
PyObject *call_end_at(HotCall *self, int64_t end_ns, PyObject *kind);

/* Find arguments by position or by name; those that were not given stay as they are. False if there is another one. */
bool find_arguments(PyObject *const *args, Py_ssize_t count, PyObject *named, const char *const *names, int limit,
                    PyObject **values);

/* Return what records the messages of a socket or connection, if its next one is ordinary: a new reference; else NULL. */
HotTraffic *ordinary_traffic(PyObject *target);

/* As begin, end and arrive in messages.py; NULL or false with an error. */
PyObject *traffic_begin(HotTraffic *self);
bool traffic_end(HotTraffic *self, PyObject *call, int64_t sent_bytes);
bool traffic_arrive(HotTraffic *self, int64_t asked_ns, int64_t recv_bytes);

/* Record a message that was sent from a time until now, and that nobody answers; false with an error. */
bool traffic_sent(HotTraffic *self, int64_t begin_ns, int64_t sent_bytes);

/* Begin a call at its server with a request that has just arrived: a new reference. */
PyObject *traffic_request(HotTraffic *self, int64_t recv_bytes);

/* End a call at its server with a reply that was sent from a time until now; false with an error. */
bool traffic_reply(HotTraffic *self, PyObject *call, int64_t begin_ns, int64_t sent_bytes);

/* Let Python end a call, or the message that is partly sent, with the error that is set; it stays set. */
void traffic_failed(HotTraffic *self, PyObject *call);

/* Add functions to the module: those that a class gets as its methods, in a dict of this name, and one that prepares them.
   Below 0 with an error. */
int add_methods(PyObject *module, const char *name, PyMethodDef *methods, PyMethodDef *prepare);
int add_traffic_functions(PyObject *module);
int add_socket_functions(PyObject *module);
int add_connection_functions(PyObject *module);
int add_audit_functions(PyObject *module);

#define AS_METHOD(function) ((PyCFunction)(void (*)(void))(function))

#endif
