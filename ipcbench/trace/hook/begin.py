"""The first steps in a process that is recorded unmodified. They run before the program does, in any interpreter."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

VARIABLE = "IPCBENCH_TRACE_RUN"
"""Environment variable of `ipcbench trace run`: JSON with `instruments`, `folder` and `package`; a
process adds its `name` for its children."""

_STARTS = {"subprocess.Popen": 1, "os.posix_spawn": 1, "os.spawn": 2, "os.exec": 1}
"""Events of `sys.audit`, each with the place of the command line among its arguments."""


def note_run(folder: str, command: Any) -> str:
    """Note that this process becomes a program: it was seen if it then begins. Return why that is not possible."""
    from ipcbench.trace.format import PROCESSES_FILE

    return ProcessNotes(os.path.join(folder, PROCESSES_FILE)).add("run", name=name_of(command))


def begin() -> None:
    """Let the libraries record that this process imports from now on, and note what programs it starts."""
    plan = json.loads(os.environ[VARIABLE])
    _find_package(plan["package"])
    from ipcbench.trace.format import PROCESSES_FILE

    note = ProcessNotes(os.path.join(plan["folder"], PROCESSES_FILE))
    # children of multiprocessing, and its helpers, go on with the program of their parent
    is_own = any(word.startswith("from multiprocessing.") for word in sys.orig_argv[1:5])
    name = plan.get("name", "") if is_own else ""
    name = plan["name"] = name or name_of(sys.orig_argv)
    os.environ[VARIABLE] = json.dumps(plan)
    note.add("began", name=name, is_own=is_own)
    from ipcbench.trace.adapters.instruments import begin_with_imports
    from ipcbench.trace.record.hot import HOT_FUNCTIONS
    from ipcbench.trace.record.recorder import STATE

    if HOT_FUNCTIONS is None:
        sys.addaudithook(note.hear)
    else:
        HOT_FUNCTIONS.add_audit_hook(frozenset(_STARTS) | {"os.system"}, note.hear)
    STATE.service = name
    begin_with_imports(plan["instruments"])


def _find_package(folder: str) -> None:
    """Let `import ipcbench` find the package in a folder, where this interpreter has none, and nothing else there."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    if find_spec("ipcbench") is not None:
        return
    spec = spec_from_file_location("ipcbench", f"{folder}/__init__.py", submodule_search_locations=[folder])
    if spec is not None and spec.loader is not None:
        module = sys.modules["ipcbench"] = module_from_spec(spec)
        spec.loader.exec_module(module)


def name_of(command: Any) -> str:
    """Return a short name of a command line without its arguments: the script or module of Python, else the program."""
    words = _words(command)
    program = os.path.basename(words[0].split()[0]) if words and words[0].split() else "?"
    if not program.startswith("python"):
        return program[:60]
    for place, word in enumerate(words[1:], 1):
        if word == "-m" and place + 1 < len(words):
            return words[place + 1][:60]
        if word == "-c" or word.startswith("-c"):
            return program[:60]
        if not word.startswith("-"):
            return os.path.basename(word).removesuffix(".py")[:60]
    return program[:60]


def is_alone(command: Any) -> bool:
    """Return whether a command line starts a Python that takes no notice of its environment or of `sitecustomize`."""
    program, *words = _words(command) or [""]
    if not os.path.basename(program).startswith("python"):
        return False
    for word in words:
        for letter in word[1:] if word.startswith("-") else "c":
            if letter in "EIS":
                return True
            if letter in "cm":  # its program, and what comes after is the program's
                return False
            if letter in "-WX":
                break
    return False


def _words(command: Any) -> list[str]:
    return [os.fsdecode(word) for word in ([command] if isinstance(command, (str, bytes)) else command)]


class ProcessNotes:
    """Writes lines to the file of processes; several processes append to it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, event: str, **facts: object) -> str:
        """Write a line; a folder that cannot be written has none. Return why, or nothing."""
        line = json.dumps({"event": event, "pid": os.getpid(), "ppid": os.getppid(), **facts}) + "\n"
        try:
            try:
                fd = self._open()
            except FileNotFoundError:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                fd = self._open()
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            if _is_of_handler(error):
                raise
            return error.strerror or str(error)
        return ""

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def hear(self, event: str, arguments: tuple[Any, ...], is_finalizing: Any = sys.is_finalizing) -> None:
        """Note a program that this process starts. Whatever the program passes, and whatever its own hooks refuse, it
        goes on; while the interpreter ends, modules that this needs may be gone.
        """
        if is_finalizing() or not (event in _STARTS or event == "os.system"):
            return
        try:
            try:
                command = "sh" if event == "os.system" else arguments[_STARTS[event]]
                name, alone = name_of(command), is_alone(command)
            except Exception as error:
                if _is_of_handler(error):
                    raise
                name, alone = "?", False
            self.add("started", name=name, replaces=event == "os.exec", alone=alone)
        except Exception as error:
            if _is_of_handler(error):
                raise


def _is_of_handler(error: BaseException) -> bool:
    from ipcbench.util.signals import raised_by_handler

    return raised_by_handler(error)
