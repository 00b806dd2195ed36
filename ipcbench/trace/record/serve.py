"""The server's side: calls that are received, queued, worked on and answered, joined to the clients' by the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, cast

from ipcbench.trace.record.call import Call
from ipcbench.trace.record.context import KEY, TRACEPARENT, Context, extract, unpack_context
from ipcbench.trace.record.no_op import NOTHING
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.record.served import NOT_SERVED, NotServed, ServerCall
from ipcbench.trace.schema import SERVER
from ipcbench.util.clock import now_ns


class Arrival(NamedTuple):
    """How a request came.

    Attributes:
        context: what it says of its call; None if nothing.
        asked_ns: when the server asked for it; 0 if that is not known.
        received_ns: when the server had it.
    """

    context: Context | None
    asked_ns: int
    received_ns: int


class Receiving:
    """What receives messages and remembers how the latest one came.

    Attributes:
        arrival: of the latest message.
    """

    arrival = Arrival(None, 0, 0)


def inject(carrier: MutableMapping[Any, Any], call: Call, text: bool = False) -> None:
    """Put the context of a call into its request, a map; do it last, before the request is serialized.

    A process that records nothing puts in nothing, and leaves it to the server what to record.

    Args:
        carrier: gets the key `ipcbench`, 40 bytes, as msgpack takes it.
        call: the call under way.
        text: put in `traceparent` instead, as W3C defines it; it has no time, so that a queue is not seen.
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
        carrier: what has the context: the request if it is a map, 40 bytes, a `traceparent`, what `wrap` returned (its
            latest message), or None.
        method: its name; few different ones, without data in them.
        peer: the other side.
        received_ns: when the request was received (`ipcbench.trace.now_ns`); now by default.
        asked_ns: when the server asked for it: a request sent before that waited for the server.
    """
    recorder = STATE.recorder
    if not recorder.enabled:
        return NOT_SERVED
    received_ns = int(received_ns) or now_ns()
    if isinstance(carrier, Receiving):
        carrier = carrier.arrival
    if isinstance(carrier, Arrival):
        context, asked_ns, received_ns = carrier
    else:
        context = extract(carrier)
    call = recorder.call(method, SERVER, peer)
    if call is NOTHING:
        return NOT_SERVED
    served = cast("ServerCall", call)
    served.arrive(context, asked_ns, received_ns)
    return served


def requests(
    receive: Callable[[], Any],
    method: str | Callable[[Any], str] = "request",
    carrier: Callable[[Any], object] | None = None,
    peer: str = "",
) -> Iterator[ServerCall]:
    """Receive and serve without end: each turn of the loop is a call, with what was received in `call.request`.

    Args:
        receive: returns the next request; what it raises ends the loop.
        method: the calls' name, or what makes it of a request.
        carrier: returns what has a request's context; by default the request itself, if it is a map.
        peer: the other side.
    """
    while True:
        asked_ns = now_ns()
        request = receive()
        received_ns = now_ns()
        name = method if isinstance(method, str) else method(request)
        source = carrier(request) if carrier is not None else request if isinstance(request, Mapping) else None
        call = serve(source, name, peer, received_ns, asked_ns)
        with NotServed() if call is NOT_SERVED else call as current:
            current.request = request
            try:
                yield current
            except GeneratorExit:  # the loop was left
                return
