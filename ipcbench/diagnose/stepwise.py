"""The step-wise check: a user's own requests, sent to a server one after another, up to the first that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ipcbench.errors import ConfigError
from ipcbench.spec import require_choice, require_range
from ipcbench.util.clock import now_ns
from ipcbench.util.files import as_store_errors, status_of
from ipcbench.util.reference import users_own

if TYPE_CHECKING:
    from zmq import Socket

Framing = Literal["req", "dealer"]
"""How a request is sent: by a REQ socket, or by a DEALER with the empty delimiter before it."""
Request = bytes | Callable[[], bytes]
Calls = Sequence[tuple[str, Request]]
"""Name of each call, and its request, or a function that makes it."""

_FORM = "a Python file with `calls = [(name, bytes or function), …]`"


@dataclass(frozen=True, slots=True)
class Step:
    """What one call came to."""

    name: str
    """As the user calls it."""
    time_ns: int | None
    """From the sending to the whole reply; None if it failed."""
    sent_bytes: int | None
    """Size of the request; None if it could not be made."""
    received_bytes: int | None
    """Size of the reply, all its parts; None if it failed."""
    error: str | None = None
    """The whole error, if it failed."""


def load_calls(path: Path) -> list[tuple[str, Request]]:
    """Return the `calls` of a Python file.

    Raises:
        StoreError: the file cannot be read.
        ConfigError: it cannot be run, or has no such list.
    """
    with as_store_errors(path):
        status_of(path)  # a pipe may have no end
        source = path.read_bytes()
    if (folder := str(path.absolute().parent)) not in sys.path:
        sys.path.append(folder)  # last, so that nothing there hides a package
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    with users_own("calls", str(path), "a Python file that can be run"), redirect_stdout(sys.stderr):
        exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 - the user's own code, which they name
    return _checked(getattr(module, "calls", None), str(path))


def _checked(calls: Any, where: str) -> list[tuple[str, Request]]:
    """Return the calls as a list.

    Raises:
        ConfigError: they have another form.
    """
    if not isinstance(calls, list | tuple) or not calls:
        what = f"{_FORM}; this `calls` is empty" if isinstance(calls, list | tuple) else _FORM
        raise ConfigError("calls", where, what)
    for number, entry in enumerate(calls):
        pair = isinstance(entry, list | tuple) and len(entry) == 2
        if not (pair and isinstance(entry[0], str) and (_is_bytes(entry[1]) or callable(entry[1]))):
            raise ConfigError(f"calls[{number}]", entry, "a name, and bytes or a function that returns them")
    return [(name, request) for name, request in calls]


def check_calls(url: str, calls: Calls, framing: Framing = "req", timeout_s: float = 5.0) -> Iterator[Step]:
    """Return an iterator that sends each request when its step is asked for, and ends after the first that fails.

    Args:
        url: the server's address, as ZeroMQ takes it.
        calls: the requests, as `load_calls` returns them.
        framing: see `Framing`.
        timeout_s: how long to wait for a reply, and for room to send.

    Raises:
        ConfigError: a value is not allowed, or, at the first step, the address; nothing has been sent.
    """
    require_choice("framing", framing, get_args(Framing))
    require_range("timeout_s", timeout_s, 0.001, 86400.0)
    return _steps(url, _checked(calls, "the list"), framing, timeout_s)


def _steps(url: str, calls: Calls, framing: Framing, timeout_s: float) -> Iterator[Step]:
    with _connected(url, framing, timeout_s) as server:
        for name, request in calls:
            step = _step(server, name, request, framing, timeout_s)
            yield step
            if step.error is not None:
                return


@contextmanager
def _connected(url: str, framing: Framing, timeout_s: float) -> Iterator[Socket[bytes]]:
    import zmq

    with zmq.Context() as context, context.socket(zmq.REQ if framing == "req" else zmq.DEALER) as server:
        server.linger = 0
        server.rcvtimeo = server.sndtimeo = round(timeout_s * 1000)
        try:
            server.connect(url)
        except zmq.ZMQError as error:
            form = "an address of ZeroMQ, as ipc:///path or tcp://host:port"
            raise ConfigError("endpoint", url, f"{form} ({error})") from error
        yield server


def _step(server: Socket[bytes], name: str, request: Request, framing: Framing, timeout_s: float) -> Step:
    import zmq

    try:
        message = _made(name, request)
    except ConfigError as error:
        return Step(name, None, None, None, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's function raises is the error that they look for
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        whole = "".join(format_exception(type(error), error, frames))
        return Step(name, None, None, None, f"its function failed\n{whole.rstrip()}")
    sent_bytes = memoryview(message).nbytes
    start_ns = now_ns()
    try:
        server.send_multipart([b"", message] if framing == "dealer" else [message])
        parts = server.recv_multipart()
    except zmq.Again:
        silence = f"nothing answered within {timeout_s:g} s; is a server there, and of this framing?"
        return Step(name, None, sent_bytes, None, silence)
    except zmq.ZMQError as error:
        return Step(name, None, sent_bytes, None, f"{type(error).__name__}: {error}")
    time_ns = now_ns() - start_ns
    if framing == "dealer" and parts[0]:
        text = "the reply has no empty delimiter before it; the server is no REP, or framing is not dealer"
        return Step(name, None, sent_bytes, sum(map(len, parts)), text)
    return Step(name, time_ns, sent_bytes, sum(map(len, parts)))


def _made(name: str, request: Request) -> bytes:
    """Return the request, as its function makes it.

    Raises:
        ConfigError: the function returns something else.
        BaseException: the function failed.
    """
    with redirect_stdout(sys.stderr):  # stdout is for results
        message = request() if callable(request) else request
    if not _is_bytes(message):
        raise ConfigError("call", name, f"bytes; its function returned {type(message).__name__}")
    return message


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)
