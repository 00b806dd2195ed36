"""requests and httpx, recorded: each HTTP request with its response, by method and host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import CLIENT, Schema

_UNKNOWN: Final = object()

HTTP = Schema("http", ("request",), CLIENT)
"""A request, with its redirects, until its response is there; with a streamed response, until its head is."""


def instrument_requests() -> Callable[[], None]:
    """Let every Session of requests record from now on; return a function that undoes it."""
    import requests

    session, adapter = requests.Session, requests.adapters.HTTPAdapter
    redirects = _noted_redirects(session.resolve_redirects)
    return replaced(
        (session, {"send": _recorded_session(session.send), "resolve_redirects": redirects}),
        (adapter, {"send": _noted_exchange(adapter.send)}),
    )


def instrument_httpx() -> Callable[[], None]:
    """Let every Client and AsyncClient of httpx record from now on; return a function that undoes it."""
    import httpx

    return replaced(
        (httpx.Client, {"send": _recorded_client(httpx.Client.send)}),
        (httpx.AsyncClient, {"send": _recorded_async(httpx.AsyncClient.send)}),
    )


def _call(request: Any, socket_path: Any) -> Call:
    place = urlsplit(str(request.url))
    host = place.netloc.rpartition("@")[2]  # without a password
    is_unix = bool(socket_path) or place.scheme.endswith("+unix")
    peer = f"unix://{socket_path or unquote(host)}" if is_unix else f"tcp://{host}"
    return STATE.recorder.call(f"{request.method} {host}", HTTP, peer)


def _note(call: Call, sizes: Sequence[tuple[int, int] | None]) -> None:
    """Note the bytes of the bodies of all requests and responses, where they are known."""
    known = [size for size in sizes if size is not None]
    if known and len(known) == len(sizes):
        call.sent_bytes, call.recv_bytes = map(sum, zip(*known, strict=True))
        call._sized = True


def _sizes(sent: Any, response: Any, arrived_bytes: int) -> tuple[int, int] | None:
    """Return the bytes of a request's and of a response's body as they went over the wire; None if one is not known.

    Args:
        sent: the body of the request; None if there is none.
        arrived_bytes: what came of the response's body before it was decoded; 0 if that was not counted.
    """
    received = getattr(response, "_content", None)
    if not isinstance(received, bytes) or not (sent is None or isinstance(sent, bytes | str)):
        return None
    if not arrived_bytes and received:
        if response.headers.get("content-encoding"):
            return None
        arrived_bytes = len(received)
    return len(sent.encode() if isinstance(sent, str) else sent or b""), arrived_bytes


_REDIRECTING: ContextVar[object] = ContextVar("redirecting", default=None)
"""The Session that follows a redirect now: `send` then calls itself."""

_ANSWERS: ContextVar[list[Any] | None] = ContextVar("answers", default=None)
"""The responses to the request that is under way, to what redirects and authentication repeat, too."""


def _recorded_session(send: Any) -> Any:
    @wraps(send)
    def recorded(self: Any, request: Any, **options: Any) -> Any:
        is_redirected = _REDIRECTING.get() is self
        outer = _REDIRECTING.set(None)
        try:
            if is_redirected:
                return send(self, request, **options)
            with _call(request, _socket_path(self, request)) as call:
                answers: list[Any] = []
                others = _ANSWERS.set(answers)
                try:
                    response = send(self, request, **options)
                finally:
                    _ANSWERS.reset(others)
                with suppress(AttributeError, TypeError):  # an adapter may return anything
                    _note(call, [_exchanged(each) for each in answers])
                return response
        finally:
            _REDIRECTING.reset(outer)

    return recorded


def _noted_exchange(exchange: Any) -> Any:
    @wraps(exchange)
    def noted(self: Any, *args: Any, **options: Any) -> Any:
        response = exchange(self, *args, **options)
        answers = _ANSWERS.get()
        if answers is not None:
            answers.append(response)
        return response

    return noted


def _noted_redirects(resolve_redirects: Any) -> Any:
    @wraps(resolve_redirects)
    def noted(self: Any, *args: Any, **options: Any) -> Iterator[Any]:
        responses = resolve_redirects(self, *args, **options)
        while True:
            outer = _REDIRECTING.set(self)
            try:
                response = next(responses, None)
            finally:
                _REDIRECTING.reset(outer)
            if response is None:
                return
            yield response

    return noted


def _socket_path(session: Any, request: Any) -> Any:
    """Return the path of a Unix socket, as the adapters of Docker and others have it. A session's own `get_adapter` is
    for `send` to call, and may count.
    """
    url = request.url.lower()
    adapters = (adapter for prefix, adapter in session.adapters.items() if url.startswith(prefix.lower()))
    return getattr(next(adapters, None), "socket_path", None)


def _exchanged(response: Any) -> tuple[int, int] | None:
    """Return the bytes of an exchange of requests; None if it was repeated, or if they are not known."""
    retries = getattr(response.raw, "retries", None)
    if retries is not None and retries.history:
        return None
    try:
        arrived_bytes = int(response.raw.tell())
    except (AttributeError, ValueError, OSError):  # an adapter may give any file
        arrived_bytes = 0
    return _sizes(response.request.body, response, arrived_bytes)


def _recorded_client(send: Any) -> Any:
    @wraps(send)
    def recorded(self: Any, request: Any, **options: Any) -> Any:
        with _call(request, _uds(self, request)) as call:
            response = send(self, request, **options)
            _note(call, _sizes_of_all(response))
            return response

    return recorded


def _recorded_async(send: Any) -> Any:
    @wraps(send)
    async def recorded(self: Any, request: Any, **options: Any) -> Any:
        with _call(request, _uds(self, request)) as call:
            response = await send(self, request, **options)
            _note(call, _sizes_of_all(response))
            return response

    return recorded


def _sizes_of_all(response: Any) -> list[tuple[int, int] | None]:
    answers = (*response.history, response)
    return [_sizes(_body_of(each.request), each, each.num_bytes_downloaded) for each in answers]


def _body_of(request: Any) -> Any:
    """Return the body of a request of httpx, where it is in memory."""
    from httpx import ByteStream

    body = getattr(request, "_content", None)
    if body is None and isinstance(request.stream, ByteStream):
        body = b"".join(request.stream)
    return _UNKNOWN if body is None else body


def _uds(client: Any, request: Any) -> Any:
    """Return the path of a Unix socket, which httpx tells nobody."""
    try:
        return client._transport_for_url(request.url)._pool._uds
    except AttributeError:
        return None
