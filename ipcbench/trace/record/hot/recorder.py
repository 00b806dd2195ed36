"""Beginning a call. Standard library only."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ipcbench.trace.schema import RPC, Schema

if TYPE_CHECKING:
    from ipcbench.trace.record.call import Call
    from ipcbench.trace.record.ids import TraceId


class HotRecorder:
    """Begins calls.

    Args:
        local: has the `entries` of each thread: sites by method, or by method, id of the schema, and peer.
    """

    __slots__ = ("_local", "_rpc")

    def __init__(self, local: threading.local, rpc: Schema) -> None:
        self._local = local
        self._rpc = rpc

    def call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        """Begin a call: use it with `with`.

        Args:
            method: its name; few different ones, without data in them.
            schema: its stages.
            peer: the other side, such as an endpoint.
            trace_id: what this call belongs to: 16 bytes, hexadecimal digits, a `traceparent`, a number; else new.
        """
        try:
            site = self._local.entries[method if schema is RPC and not peer else (method, id(schema), peer)]
        except (AttributeError, KeyError):
            return self._slow_call(method, schema, peer, trace_id)
        unseen = site._unseen
        if unseen:  # as `begin` does, and quicker: most calls are such, where they are counted
            site._unseen = unseen - 1
            counted: Call = site._nothing
            return counted
        if trace_id is not None:
            return self._slow_call(method, schema, peer, trace_id)
        call: Call = site.begin()
        return call

    def _slow_call(self, method: str, schema: Schema = RPC, peer: str = "", trace_id: TraceId = None) -> Call:
        """Begin a call of which the site is not there yet, or that is not an ordinary one."""
        raise NotImplementedError
