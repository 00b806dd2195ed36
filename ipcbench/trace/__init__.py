"""Tracing a real application: what its calls between processes cost, stage by stage, cheaply enough to leave on.

>>> from ipcbench import trace
>>> trace.start("trace/", service="client")          # or IPCBENCH_TRACE=trace/,sample=16 in the environment
>>> with trace.call("Matmul") as call:               # stages: serialize, send, wait, deserialize
...     request = pack(matrix)
...     call.serialized(len(request))
...     socket.send(request)
...     call.sent()
...     reply = socket.recv()
...     call.received(len(reply))
...     result = unpack(reply)
"""

from __future__ import annotations

from ipcbench.trace.adapters.correlate import Ids
from ipcbench.trace.adapters.wrap import instrument_zmq, wrap
from ipcbench.trace.ids import TraceId
from ipcbench.trace.record.call import Call, ServerCall
from ipcbench.trace.record.context import Context, extract
from ipcbench.trace.record.decorate import traced
from ipcbench.trace.record.recorder import STATE, Recorder, start, stop
from ipcbench.trace.record.serve import inject, requests, serve
from ipcbench.trace.schema import FUNCTION, GENERATOR, PIPELINE, RPC, SERVER, Schema
from ipcbench.util.clock import now_ns

__all__ = [
    "FUNCTION", "GENERATOR", "PIPELINE", "RPC", "SERVER", "Call", "Context", "Ids", "Recorder", "Schema", "ServerCall",
    "TraceId", "call", "extract", "inject", "instrument_zmq", "now_ns", "requests", "serve", "start", "stop", "traced",
    "wrap",
]  # fmt: skip


def call(method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
    """Begin a call of this process's recorder: use it with `with`. Without a recorder it costs next to nothing.

    Args:
        method: its name; few different ones, without data in them.
        schema: its stages.
        peer: the other side, such as an endpoint.
        trace_id: the trace of this call: 16 bytes, hexadecimal digits, a `traceparent`, a number; else new.
    """
    return STATE.recorder.call(method, schema, peer, trace_id)
