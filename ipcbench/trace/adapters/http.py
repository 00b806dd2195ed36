"""requests and httpx, recorded: each HTTP request with its response, by method and host."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import CLIENT, Schema

HTTP = Schema("http", ("request",), CLIENT)
"""A request until its response is there; with a streamed response, until its head is."""


def instrument_requests() -> Callable[[], None]:
    """Let every Session of requests record from now on; return a function that undoes it."""
    import requests

    return replaced((requests.Session, {"send": _recorded(requests.Session.send)}))


def instrument_httpx() -> Callable[[], None]:
    """Let every Client and AsyncClient of httpx record from now on; return a function that undoes it."""
    import httpx

    return replaced(
        (httpx.Client, {"send": _recorded(httpx.Client.send)}),
        (httpx.AsyncClient, {"send": _recorded_async(httpx.AsyncClient.send)}),
    )


def _call(request: Any) -> Call:
    place = urlsplit(str(request.url))
    return STATE.recorder.call(f"{request.method} {place.netloc}", HTTP, f"tcp://{place.netloc}")


def _note(call: Call, request: Any, response: Any) -> None:
    """Note the bytes of the bodies, where both are in memory."""
    sent = request.body if hasattr(request, "body") else getattr(request, "_content", None)
    received = getattr(response, "_content", None)
    if isinstance(received, bytes) and (sent is None or isinstance(sent, bytes | str)):
        call.sent_bytes, call.recv_bytes = len(sent or b""), len(received)


def _recorded(send: Any) -> Any:
    @wraps(send)
    def recorded(self: Any, request: Any, **options: Any) -> Any:
        with _call(request) as call:
            response = send(self, request, **options)
            _note(call, request, response)
            return response

    return recorded


def _recorded_async(send: Any) -> Any:
    @wraps(send)
    async def recorded(self: Any, request: Any, **options: Any) -> Any:
        with _call(request) as call:
            response = await send(self, request, **options)
            _note(call, request, response)
            return response

    return recorded
