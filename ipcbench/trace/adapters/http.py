"""requests and httpx, recorded: each HTTP request with its response, by method and host."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any
from urllib.parse import unquote, urlsplit

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import CLIENT, Schema

HTTP = Schema("http", ("request",), CLIENT)
"""A request, with its redirects, until its response is there; with a streamed response, until its head is."""


def instrument_requests() -> Callable[[], None]:
    """Let every Session of requests record from now on; return a function that undoes it."""
    import requests

    return replaced((requests.Session, {"send": _recorded_session(requests.Session.send)}))


def instrument_httpx() -> Callable[[], None]:
    """Let every Client and AsyncClient of httpx record from now on; return a function that undoes it."""
    import httpx

    return replaced(
        (httpx.Client, {"send": _recorded_client(httpx.Client.send)}),
        (httpx.AsyncClient, {"send": _recorded_async(httpx.AsyncClient.send)}),
    )


def _call(request: Any, socket_path: Any) -> Call:
    place = urlsplit(str(request.url))
    is_unix = bool(socket_path) or place.scheme.endswith("+unix")
    peer = f"unix://{socket_path or unquote(place.netloc)}" if is_unix else f"tcp://{place.netloc}"
    return STATE.recorder.call(f"{request.method} {place.netloc}", HTTP, peer)


def _note(call: Call, response: Any, sent: Any, arrived_bytes: int) -> None:
    """Note the bytes of the bodies as they went over the wire, where all of both is known.

    Args:
        sent: the body of the request.
        arrived_bytes: what came of the response's body before it was decoded; 0 if that was not counted.
    """
    received = getattr(response, "_content", None)
    if not isinstance(received, bytes) or not (sent is None or isinstance(sent, bytes | str)):
        return
    if not arrived_bytes and received:
        if response.headers.get("content-encoding"):
            return
        arrived_bytes = len(received)
    call.sent_bytes, call.recv_bytes = len(sent.encode() if isinstance(sent, str) else sent or b""), arrived_bytes


def _recorded_session(send: Any) -> Any:
    """Record a request with its redirects, for which `send` calls itself."""
    redirecting: ContextVar[object] = ContextVar("redirecting", default=None)

    @wraps(send)
    def recorded(self: Any, request: Any, **options: Any) -> Any:
        if redirecting.get() is self and options.get("allow_redirects") is False:
            return send(self, request, **options)
        with _call(request, _socket_path(self, request)) as call:
            outer = redirecting.set(self)
            try:
                response = send(self, request, **options)
            finally:
                redirecting.reset(outer)
            _note(call, response, request.body, _arrived_bytes(response))
            return response

    return recorded


def _socket_path(session: Any, request: Any) -> Any:
    """Return the path of a Unix socket, as the adapters of Docker and others have it."""
    try:
        return getattr(session.get_adapter(request.url), "socket_path", None)
    except ValueError:  # no adapter, as `send` will say
        return None


def _arrived_bytes(response: Any) -> int:
    try:
        return int(response.raw.tell())
    except (AttributeError, ValueError, OSError):  # an adapter may give any file
        return 0


def _recorded_client(send: Any) -> Any:
    @wraps(send)
    def recorded(self: Any, request: Any, **options: Any) -> Any:
        with _call(request, _uds(self, request)) as call:
            response = send(self, request, **options)
            _note(call, response, getattr(request, "_content", None), response.num_bytes_downloaded)
            return response

    return recorded


def _recorded_async(send: Any) -> Any:
    @wraps(send)
    async def recorded(self: Any, request: Any, **options: Any) -> Any:
        with _call(request, _uds(self, request)) as call:
            response = await send(self, request, **options)
            _note(call, response, getattr(request, "_content", None), response.num_bytes_downloaded)
            return response

    return recorded


def _uds(client: Any, request: Any) -> Any:
    """Return the path of a Unix socket, which httpx tells nobody."""
    try:
        return client._transport_for_url(request.url)._pool._uds
    except AttributeError:
        return None
