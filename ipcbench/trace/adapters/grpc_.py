"""gRPC, recorded by interceptors: each call at its client until its last response, each answered call at its server."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import grpc

from ipcbench.trace.adapters.instruments import replaced
from ipcbench.trace.record.call import Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import CLIENT, SERVER_SIDE, Schema

GRPC = Schema("grpc", ("call",), CLIENT)
"""A call as its client sees it."""

GRPC_SERVER = Schema("grpc server", ("work",), SERVER_SIDE)
"""The work on a call with one request and one response."""


def instrument() -> Callable[[], None]:
    """Let every channel and server that is made from now on record; return a function that undoes it."""
    members: dict[str, Any] = {
        "insecure_channel": _channel(grpc.insecure_channel),
        "secure_channel": _channel(grpc.secure_channel),
        "server": _server(grpc.server),
    }
    return replaced((grpc, members))


class _Client(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        call = STATE.recorder.call(_name(details.method), GRPC, self._peer)
        call.__enter__()
        try:
            response = continuation(details, request)
        except BaseException as error:
            call.__exit__(type(error), error, None)
            raise
        response.add_done_callback(lambda done: _end(call, done))
        return response

    intercept_unary_unary = intercept_unary_stream = _intercept
    intercept_stream_unary = intercept_stream_stream = _intercept


def _name(method: Any) -> str:
    text: str = method.decode() if isinstance(method, bytes) else str(method)
    return text.lstrip("/")


def _end(call: Call, done: Any) -> None:
    is_right = done.code() in {None, grpc.StatusCode.OK}
    call.__exit__(None if is_right else grpc.RpcError, None, None)


def _channel(make: Any) -> Any:
    @wraps(make)
    def made(target: str, *args: Any, **kwargs: Any) -> Any:
        return grpc.intercept_channel(make(target, *args, **kwargs), _Client(f"tcp://{target}"))

    return made


class _Server(grpc.ServerInterceptor):  # type: ignore[misc]
    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        work, name = handler.unary_unary, _name(details.method)

        def recorded(request: Any, context: Any) -> Any:
            with STATE.recorder.call(name, GRPC_SERVER):
                return work(request, context)

        return grpc.unary_unary_rpc_method_handler(recorded, handler.request_deserializer, handler.response_serializer)


def _server(make: Any) -> Any:
    @wraps(make)
    def made(*args: Any, interceptors: Any = None, **kwargs: Any) -> Any:
        return make(*args, interceptors=(_Server(), *(interceptors or ())), **kwargs)

    return made
