/* Sending and receiving on a recorded connection of multiprocessing. See ipcbench/trace/adapters/multiprocessing_all.py,
   whose functions do the same for the first message of a connection, and for one that was wrapped by itself. */

#include "hot.h"

/* What multiprocessing_all.py gives: its own functions, and those of the class of connections. */
static PyObject *slow_send, *slow_receive, *raw_send, *raw_receive;

static PyObject *tell_name;

/* _send_bytes(connection, buf) */
static PyObject *connection_send(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    HotTraffic *traffic = named == NULL && count == 2 ? ordinary_traffic(args[0]) : NULL;
    if (traffic == NULL) return PyObject_Vectorcall(slow_send, args, (size_t)count, named);
    PyObject *call = traffic_begin(traffic), *result = NULL;
    Py_ssize_t size = call == NULL ? -1 : PyObject_Size(args[1]);
    if (size >= 0) result = PyObject_Vectorcall(raw_send, args, 2, NULL);
    if (result == NULL && call != NULL) traffic_failed(traffic, call);
    if (result != NULL && !traffic_end(traffic, call, size)) Py_CLEAR(result);
    Py_XDECREF(call);
    Py_DECREF(traffic);
    return result;
}

/* _recv_bytes(connection, maxsize=None) */
static PyObject *connection_receive(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *named) {
    HotTraffic *traffic = named == NULL && count >= 1 ? ordinary_traffic(args[0]) : NULL;
    if (traffic == NULL) return PyObject_Vectorcall(slow_receive, args, (size_t)count, named);
    int64_t asked_ns = now_ns();
    PyObject *data = PyObject_Vectorcall(raw_receive, args, (size_t)count, NULL);
    if (data != NULL && data != Py_None) {
        PyObject *at = PyObject_CallMethodNoArgs(data, tell_name); /* its size: it was just written */
        Py_ssize_t size = at == NULL ? -1 : PyLong_AsSsize_t(at);
        if (size < 0 || !traffic_arrive(traffic, asked_ns, size)) Py_CLEAR(data);
        Py_XDECREF(at);
    }
    Py_DECREF(traffic);
    return data;
}

/* set_connection_functions(send, receive, raw_send, raw_receive) */
static PyObject *set_functions(PyObject *module, PyObject *args) {
    PyObject **places[] = {&slow_send, &slow_receive, &raw_send, &raw_receive};
    const int wanted = sizeof places / sizeof *places;
    if (PyTuple_GET_SIZE(args) != wanted) return PyErr_Format(PyExc_TypeError, "it takes %d arguments", wanted);
    if (tell_name == NULL && (tell_name = PyUnicode_InternFromString("tell")) == NULL) return NULL;
    for (int i = 0; i < wanted; i++) Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(args, i)));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_send_bytes", AS_METHOD(connection_send), METH_FASTCALL | METH_KEYWORDS, "_send_bytes(self, buf)\n--\n\n"
     "Send a message, and record it."},
    {"_recv_bytes", AS_METHOD(connection_receive), METH_FASTCALL | METH_KEYWORDS, "_recv_bytes(self, maxsize=None)\n--\n\n"
     "Receive a message, and record it."},
    {NULL},
};

static PyMethodDef set_definition = {"set_connection_functions", set_functions, METH_VARARGS, NULL};

int add_connection_functions(PyObject *module) { return add_methods(module, "connection_methods", methods, &set_definition); }
