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

_RESOLVERS = {"dns", "ipv4", "ipv6", "xds"}


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


def _peer(target: str) -> str:
    """Return the endpoint of a target such as `host:50051`, `dns:///host:50051` or `unix:/path`."""
    scheme, _, path = target.partition(":")
    if scheme in {"unix", "unix-abstract"}:
        return f"unix://{path.removeprefix('//')}"
    return f"tcp://{path.lstrip('/') if scheme in _RESOLVERS else target}"


def _name(method: Any) -> str:
    text: str = method.decode() if isinstance(method, bytes) else str(method)
    return text.lstrip("/")


def _end(call: Call, done: Any) -> None:
    is_right = done.code() in {None, grpc.StatusCode.OK}
    call.__exit__(None if is_right else grpc.RpcError, None, None)


def _channel(make: Any) -> Any:
    @wraps(make)
    def made(target: str, *args: Any, **kwargs: Any) -> Any:
        return grpc.intercept_channel(make(target, *args, **kwargs), _Client(_peer(target)))

    return made


class _Server(grpc.ServerInterceptor):  # type: ignore[misc]
    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        work, name = handler.unary_unary, _name(details.method)

        def recorded(request: Any, context: Any) -> Any:
            with STATE.recorder.call(name, GRPC_SERVER) as call:
                response = work(request, context)
                if context.code() not in {None, 0, grpc.StatusCode.OK}:
                    call.__exit__(grpc.RpcError, None, None)
                return response

        return grpc.unary_unary_rpc_method_handler(recorded, handler.request_deserializer, handler.response_serializer)


def _server(make: Any) -> Any:
    @wraps(make)
    def made(thread_pool: Any, handlers: Any = None, interceptors: Any = None, *args: Any, **kwargs: Any) -> Any:
        return make(thread_pool, handlers, (_Server(), *(interceptors or ())), *args, **kwargs)

    return made
