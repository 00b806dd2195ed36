"""The server's side: calls received, queued, worked on and answered, joined to the clients' by their contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, cast

from ipcbench.trace.record.call import NO_OP, NO_OP_SERVER_CALL, Call, NoOpServerCall, ServerCall
from ipcbench.trace.record.context import KEY, TRACEPARENT, Context, extract, unpack_context
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.schema import SERVER
from ipcbench.util.clock import now_ns


class Arrival(NamedTuple):
    """How a request arrived.

    Attributes:
        context: what it says about its call; None if nothing.
        asked_ns: when the server asked for it; 0 if that is not known.
        received_ns: when the server had it.
    """

    context: Context | None
    asked_ns: int
    received_ns: int


class Receiving:
    """Something that receives messages and remembers how the latest one arrived.

    Attributes:
        arrival: of the latest message.
    """

    arrival = Arrival(None, 0, 0)


def inject(carrier: MutableMapping[Any, Any], call: Call, text: bool = False) -> None:
    """Put the context of a call into its request, a map; do this last, before the request is serialized.

    A process that does not trace adds nothing, and leaves it to the server what to record.

    Args:
        carrier: the request; gets the key `ipcbench` with 40 bytes, as msgpack takes them.
        call: the call under way.
        text: add `traceparent` instead, as W3C defines it; it carries no time, so time in a queue is not seen.
    """
    if not STATE.recorder.enabled:
        return
    packed = call.context()
    if not text:
        carrier[KEY] = packed
        return
    context = unpack_context(packed)
    if context is not None and context.span:
        carrier[TRACEPARENT] = context.traceparent


def serve(
    carrier: object = None, method: str = "request", peer: str = "", received_ns: int = 0, asked_ns: int = 0
) -> ServerCall:
    """Begin a call at its server: use it with `with` around the work and the reply.

    Stages: `queue` until the block, `work` until `call.replying(bytes)`, `reply` until the end of the block.

    Args:
        carrier: where the context is: the request if it is a map, 40 bytes, a `traceparent`, what `wrap` returned (its
            latest message), or None.
        method: its name; few different ones, without data in them.
        peer: the other side.
        received_ns: when the request was received (`ipcbench.trace.now_ns`); now by default.
        asked_ns: when the server asked for it; a request sent before that waited for the server.
    """
    recorder = STATE.recorder
    if not recorder.enabled:
        return NO_OP_SERVER_CALL
    received_ns = int(received_ns) or now_ns()
    if isinstance(carrier, Receiving):
        carrier = carrier.arrival
    if isinstance(carrier, Arrival):
        context, asked_ns, received_ns = carrier
    else:
        context = extract(carrier)
    call = recorder.call(method, SERVER, peer)
    if call is NO_OP:
        return NO_OP_SERVER_CALL
    served = cast("ServerCall", call)
    served.arrive(context, asked_ns, received_ns)
    return served


def requests(
    receive: Callable[[], Any],
    method: str | Callable[[Any], str] = "request",
    carrier: Callable[[Any], object] | None = None,
    peer: str = "",
) -> Iterator[ServerCall]:
    """Receive and serve forever: each turn of the loop is a call, with what was received in `call.request`.

    Args:
        receive: returns the next request; what it raises ends the loop.
        method: the calls' name, or a function that returns it for a request.
        carrier: returns where a request's context is; by default the request itself, if it is a map.
        peer: the other side.
    """
    while True:
        asked_ns = now_ns()
        request = receive()
        received_ns = now_ns()
        name = method if isinstance(method, str) else method(request)
        source = carrier(request) if carrier is not None else request if isinstance(request, Mapping) else None
        call = serve(source, name, peer, received_ns, asked_ns)
        with NoOpServerCall() if call is NO_OP_SERVER_CALL else call as current:
            current.request = request
            try:
                yield current
            except GeneratorExit:  # the loop was left
                return
