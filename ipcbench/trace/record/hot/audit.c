/* An audit hook that passes on few events: in Python, a hook would cost each of the others a call. Hooks are called in
   all interpreters of the process; this one keeps to that which has added it, and its work is not traced, as Python does
   with its own hooks. */

#include "hot.h"

typedef struct {
    PyInterpreterState *interpreter;
    PyObject *names, *hear; /* never released: hooks cannot be removed */
} Hook;

static int audit(const char *event, PyObject *arguments, void *data) {
    Hook *hook = data;
    /* What is asked for is all in these modules; a program may look at its frames a million times a second. */
    if (strncmp(event, "os.", 3) != 0 && strncmp(event, "subprocess.", 11) != 0) return 0;
    if (PyInterpreterState_Get() != hook->interpreter) return 0;
    PyThreadState *thread = PyThreadState_Get();
    PyThreadState_EnterTracing(thread);
    PyObject *name = PyUnicode_FromString(event);
    int is_wanted = name == NULL ? -1 : PySet_Contains(hook->names, name);
    PyObject *heard = is_wanted > 0 ? PyObject_CallFunctionObjArgs(hook->hear, name, arguments, NULL) : NULL;
    PyThreadState_LeaveTracing(thread);
    bool failed = is_wanted < 0 || (is_wanted > 0 && heard == NULL);
    Py_XDECREF(name);
    Py_XDECREF(heard);
    return failed ? -1 : 0;
}

/* add_audit_hook(names, hear): call `hear(event, arguments)` for events of these names, which begin with `os.` or `subprocess.`. */
static PyObject *add_audit_hook(PyObject *module, PyObject *args) {
    PyObject *names, *hear;
    if (!PyArg_ParseTuple(args, "O!O", &PyFrozenSet_Type, &names, &hear)) return NULL;
    Hook *hook = PyMem_RawMalloc(sizeof *hook);
    if (hook == NULL) return PyErr_NoMemory();
    *hook = (Hook){PyInterpreterState_Main(), Py_NewRef(names), Py_NewRef(hear)};
    if (PySys_AddAuditHook(audit, hook) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef definition = {"add_audit_hook", add_audit_hook, METH_VARARGS, NULL};

int add_audit_functions(PyObject *module) { return add_methods(module, NULL, NULL, &definition); }
