"""The server's side: one process that many clients call."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import finalize

from ipcbench.channels.epoch import usable_backend
from ipcbench.errors import ConfigError, TransportError
from ipcbench.rpc.loop import Loop, Served
from ipcbench.rpc.protocol import Options, meeting_of
from ipcbench.spec import ChannelSpec, WaitStrategy, require_choice, whole_number
from ipcbench.util.units import parse_bytes
from ipcbench.workload.objects import Slot

_CLIENTS_OWN = ("call", "close", "empty", "methods", "submit")
Method = TypeVar("Method", bound=Callable[..., Any])


class Server:
    """Serves methods under a name on this host, to processes of the same user.

    Methods run one at a time in the thread that serves, or with `threads` above 1 in as many threads.
    """

    _shares = True
    """Whether a method may be given arrays that share the transport's memory."""

    def __init__(
        self,
        backend: str,
        name: str,
        *,
        max_bytes: int | str = "16MiB",
        depth: int = 16,
        threads: int = 1,
        wait: WaitStrategy = "auto",
    ) -> None:
        """Prepare; nothing is made before `serve` or `start`.

        Args:
            backend: name of the transport.
            name: 1 to 24 letters, digits, `-` or `_`.
            max_bytes: size of the arrays and bytes in the largest request, and in the largest reply. Shared memory for
                both is reserved for each client, about 3 times as much (docs/use.md).
            depth: how many calls of a client may be in flight; it then waits.
            threads: how many methods may run at the same time.
            wait: how endpoints wait, see `ChannelSpec.wait`.

        Raises:
            ConfigError: a value is not allowed.
            UnknownBackend, BackendUnavailable: there is no such transport, or not here.
        """
        usable_backend(backend)
        size = parse_bytes(max_bytes, "max_bytes") if isinstance(max_bytes, str) else max_bytes
        size = whole_number("max_bytes", size, 1024, 2**40)
        require_choice("wait", wait, ("auto", "spin", "yield", "block"))
        self._meeting = meeting_of(name)
        self._options = Options(
            backend,
            min(2**40, size + Slot.ROOM_BYTES),
            whole_number("depth", depth, 2, 1024),
            wait,
            os.getpid(),
        )
        ChannelSpec("x", max_message_bytes=self._options.max_message_bytes)
        self._threads = whole_number("threads", threads, 1, 1024)
        self._methods: dict[str, Served] = {}
        self._loop: Loop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def method(self, function: Method | None = None, *, name: str | None = None, copy: bool = True,
               out: bool = False) -> Any:  # fmt: skip
        """Offer a function; used as a decorator, with or without arguments.

        Args:
            function: its arguments and its result are what `ipcbench.channels` can send.
            name: under which it is called; its own name by default.
            copy: False gives it arrays that share the transport's memory: read-only, and valid only until it returns.
            out: True gives it `out`, a function `out(shape, dtype)` that returns an array in the transport's memory,
                with undefined contents. If the function returns that array, it is not copied.

        Raises:
            ConfigError: there is a method of that name, or the client has one; or it is a coroutine, and this server is
                not that of asyncio.
        """
        if function is None:
            return partial(self.method, name=name, copy=copy, out=out)
        if not callable(function):
            raise ConfigError("method", function, "a function; to choose its name, method(name=…)")
        chosen: Any = name or getattr(function, "__name__", "")
        is_free = isinstance(chosen, str) and chosen not in {"", *self._methods, *_CLIENTS_OWN}
        if not is_free or chosen.startswith("_"):
            raise ConfigError("method", chosen, "a name that no other method has, nor the client itself, not beginning "
                              "with _")  # fmt: skip
        if self._shares and inspect.iscoroutinefunction(function):
            raise ConfigError("method", chosen, "a function; coroutines are for the server of ipcbench.rpc.aio")
        self._methods[chosen] = Served(chosen, function, self._shares and self._threads == 1 and not copy, out)
        return function

    def serve(self) -> None:
        """Serve until `stop`, or until Ctrl-C.

        Raises:
            TransportError: a server of that name is running, or the folder is another user's.
        """
        with self._serving(Loop) as loop, suppress(KeyboardInterrupt):
            loop.run()

    @contextmanager
    def _serving(self, kind: type[Loop]) -> Iterator[Loop]:
        """Take the name, and give it up at the end of the block."""
        with self._starting:
            if self._loop is not None:
                raise TransportError(f"server {self._meeting.name!r} serves already")
            self._loop = loop = kind(self._meeting, self._options, self._methods, self._threads)
        at_exit = finalize(self, loop.end)
        try:
            yield loop
        finally:
            self._loop = None
            at_exit.detach()
            loop.close()

    def start(self) -> Self:
        """Serve in a thread of this process, until `stop` or the end of a `with` block.

        Raises:
            as `serve`.
        """
        stack = ExitStack()
        loop = stack.enter_context(self._serving(Loop))

        def run() -> None:
            with stack:
                loop.run()

        self._thread = threading.Thread(target=run, name=f"ipcbench-rpc-{self._meeting.name}", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving after the method that runs; from any thread or signal handler. Without a server, do nothing."""
        loop, thread = self._loop, self._thread
        if loop is not None:
            loop.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self if self._loop is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        self.stop()
