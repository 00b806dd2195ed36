"""Which messages of a socket answer which: requests and replies of sockets whose type does not tell, joined by ids."""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ipcbench.errors import ConfigError
from ipcbench.trace.record.call import NO_OP, NO_OP_SERVER_CALL, Call
from ipcbench.trace.record.recorder import STATE
from ipcbench.trace.record.serve import serve
from ipcbench.trace.schema import EXCHANGE, RECEIVE, SEND
from ipcbench.util.clock import now_ns
from ipcbench.util.signals import raised_by_handler

if TYPE_CHECKING:
    from ipcbench.trace.adapters.messages import Traffic

_MOST_OPEN: Final = 4096
_JUPYTER: Final = b"<IDS|MSG>"
_JUPYTER_FIELDS: Final = re.compile(rb'"(msg_id|msg_type|date)"\s*:\s*"([^"]*)"')
_LONGEST_LABEL: Final = 60


class Ids(NamedTuple):
    """What a message says of itself.

    Attributes:
        own: the id by which another message may answer it; None if none may.
        answers: the id of the message that it answers; None if it answers none.
        label: what kind of message it is, such as `execute_request`; few different ones.
        is_unique: whether no other message anywhere has the id `own`, a text, so that both sides' records join by it.
        made: when the message was made, as it says itself, if `own` is unique only together with that.
    """

    own: object = None
    answers: object = None
    label: str = ""
    is_unique: bool = False
    made: str = ""

    def join(self, call: Call) -> None:
        """Give a call the trace and the span that follow from the id, on either side."""
        if self.is_unique and call is not NO_OP and call is not NO_OP_SERVER_CALL:
            digest = blake2b(f"{self.own}{self.made}".encode(errors="surrogatepass"), digest_size=24).digest()
            high, low, span = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8, 16))
            call._trace, call._span = (high, low), span | 1


_NO_IDS: Final = Ids()

_log = logging.getLogger("ipcbench.trace")

Correlate: TypeAlias = Callable[[Sequence[Any]], Ids | None]
"""Returns what the frames of a message, which are buffers, say of it; None if nothing."""


def jupyter(frames: Sequence[Any]) -> Ids | None:
    """Return the ids of a message of Jupyter: its own, and that of its parent. A kernel's manager and its clients
    number their messages independently under one session, so messages of two channels may have one id.
    """
    parts = [frame if type(frame) is bytes else _bytes_of(frame) for frame in frames[:8]]
    if _JUPYTER not in parts:
        return None
    at = parts.index(_JUPYTER)
    try:
        header, parent = _jupyter_fields(parts[at + 2]), _jupyter_fields(parts[at + 3])
        label = str(header.get("msg_type", ""))[:_LONGEST_LABEL]
        own, answers = (
            each if isinstance(each, str) else None for each in (header.get("msg_id"), parent.get("msg_id"))
        )
        return Ids(own, answers, label, is_unique=True, made=f" {label} {header.get('date', '')}")
    except (IndexError, ValueError, AttributeError, RecursionError):
        return None


def _bytes_of(frame: Any) -> bytes:
    """Return a frame's bytes; none if they are gone, or cannot be had."""
    try:
        return bytes(frame)
    except (ValueError, TypeError, BufferError):
        return b""


def _jupyter_fields(header: bytes) -> Any:
    """Return the fields of a header that tell messages apart; what is plainly written needs no parser."""
    if header.count(b"{") == 1 and b"\\" not in header:
        return {name.decode(): value.decode() for name, value in _JUPYTER_FIELDS.findall(header)}
    return json.loads(header)


def envelope(frames: Sequence[Any]) -> Ids | None:
    """Return the ids of a message at a ROUTER whose peer is a REQ: such a peer waits for each reply, so its identity
    tells the message that is answered.
    """
    if len(frames) < 3 or len(frames[1]):
        return None
    identity = _bytes_of(frames[0])
    return Ids(identity, identity)


def _any(frames: Sequence[Any]) -> Ids | None:
    return jupyter(frames) or envelope(frames)


_BY_TYPE: Final[dict[str, Correlate]] = {"DEALER": jupyter, "ROUTER": _any}
_BY_NAME: Final[dict[str, Correlate]] = {"jupyter": jupyter, "envelope": envelope}


_ANY_PROTOCOL, _JUPYTERS, _ENVELOPES = 1, 2, 4
_PROTOCOLS: Final = ((jupyter, _JUPYTERS), (envelope, _ENVELOPES), (_any, _JUPYTERS | _ENVELOPES))


def correlate_of(correlate: Correlate | str | None, kind: str) -> Correlate | None:
    """Return the function of a name; for `auto`, that which knows the protocols of a type of sockets, if there is one.

    Raises:
        ConfigError: no such name.
    """
    if correlate is None or callable(correlate):
        return correlate
    if correlate == "auto":
        return _BY_TYPE.get(kind)
    if correlate not in _BY_NAME:
        raise ConfigError("correlate", correlate, f"a function, {', '.join(_BY_NAME)}, auto or None")
    return _BY_NAME[correlate]


def protocols_of(correlate: Correlate) -> int:
    """Return which messages the function may know, so that the code in C need not ask it for each (see hot.h)."""
    return next((bits for known, bits in _PROTOCOLS if known is correlate), _ANY_PROTOCOL)


def _checked(ids: Any) -> Ids:
    """Return what a user's function returned, if it can be used.

    Raises:
        TypeError: it cannot.
    """
    if ids is None:
        return _NO_IDS
    if not isinstance(ids, Ids) or not isinstance(ids.label, str):
        raise TypeError(f"it returned {ids!r:.80}, which are no Ids")
    hash(ids.own), hash(ids.answers)
    if ids.is_unique and not isinstance(ids.own, str | None):
        raise TypeError(f"a unique id must be a text, not {ids.own!r:.80}")
    return ids


class Pairs:
    """The requests of a socket that wait for their replies, and those that it has to answer.

    Args:
        traffic: of the socket.
        find: returns the ids of a message.
        asks: whether the socket sends requests, as a DEALER does; a ROUTER answers them.
    """

    def __init__(self, traffic: Traffic, find: Correlate, asks: bool) -> None:
        self._traffic, self._find, self._asks = traffic, find, asks
        self._open: OrderedDict[object, Call] = OrderedDict()
        self._impatient: set[object] = set()
        self._has_failed = False
        self._is_own = protocols_of(find) != _ANY_PROTOCOL

    def sent(self, frames: list[Any], begun_ns: int, sent_bytes: int, error: BaseException | None = None) -> None:
        """Record a message that was sent from `begun_ns` until now: a request, a reply, or one that nobody answers.

        Args:
            frames: the message; emptied.
        """
        sent_ns, ids = now_ns(), self._ids(frames)
        if error is None and not self._asks and ids.answers in self._open:
            served = self._open.pop(ids.answers)
            if served is not NO_OP_SERVER_CALL:
                served._stamp(begun_ns)
                served.sent_bytes, served._sized = sent_bytes, True
                served._finish(served._begin_ns, sent_ns)
        elif error is None and self._asks and ids.own is not None and ids.answers is None:
            asked = STATE.recorder.call(self._name(ids), EXCHANGE, self._traffic.peer)
            if asked is not NO_OP:
                asked._begin_ns = begun_ns
                asked.mark(0, sent_bytes)
                ids.join(asked)
            self.keep(ids.own, asked)
        else:
            self._traffic.one_way(SEND, begun_ns, sent_ns, sent_bytes, error)

    def received(self, frames: list[Any], asked_ns: int, recv_bytes: int) -> None:
        """Record a message that has arrived after it was asked for at `asked_ns`, as `sent` does."""
        received_ns, ids = now_ns(), self._ids(frames)
        self._traffic.received_ns = received_ns
        if self._asks and ids.answers in self._open:
            asked = self._open.pop(ids.answers)
            asked.recv_bytes = recv_bytes
            asked.__exit__(None, None, None)
        elif not self._asks and ids.own is not None and ids.answers in {None, ids.own}:
            served = serve(self._traffic.arrival, self._name(ids), self._traffic.peer)
            served.recv_bytes = recv_bytes
            ids.join(served)
            served.__enter__()
            if ids.own is ids.answers:
                self.keep_envelope(ids.own, served)
            else:
                self.keep(ids.own, served)
        else:
            self._traffic.one_way(RECEIVE, asked_ns, received_ns, recv_bytes)

    def _ids(self, frames: list[Any]) -> Ids:
        try:
            if self._is_own:
                return self._find(frames) or _NO_IDS
            return _checked(self._find(frames))
        except Exception as error:  # a user's function must not end the application
            if self._is_own:  # which catches what it can raise: this is from a signal handler
                raise
            if raised_by_handler(error):
                raise
            if not self._has_failed:
                self._has_failed = True
                _log.warning("messages are not paired: correlate raised %s: %s", type(error).__name__, error)
            return _NO_IDS
        finally:
            frames.clear()

    def _name(self, ids: Ids) -> str:
        return f"{self._traffic.method} {ids.label}".rstrip()

    def keep(self, own: object, call: Call) -> None:
        """Keep a call until its reply; of more than 4,096, and of two with one id, the older gets none."""
        late = [self._open.pop(own)] if own in self._open else []
        self._open[own] = call
        if len(self._open) > _MOST_OPEN:
            late.append(self._open.popitem(last=False)[1])
        for unanswered in late:
            self._unanswered(unanswered)

    def keep_envelope(self, identity: object, call: Call) -> None:
        """Keep a call until its reply, unless its peer is no REQ: one that does not wait for a reply before its next
        request may put an empty frame before each, too, and nothing tells which request a reply answers.
        """
        if identity in self._open and identity not in self._impatient:
            if len(self._impatient) == _MOST_OPEN:
                self._impatient.clear()
            self._impatient.add(identity)
            self._unanswered(self._open.pop(identity))
        if identity in self._impatient:
            self._unanswered(call)
        else:
            self.keep(identity, call)

    def take(self, own: object) -> Call | None:
        """Return the call that waits for a reply to this id, and keep it no longer; None if there is none."""
        return self._open.pop(own, None)

    def _unanswered(self, call: Call) -> None:
        """Record a call without a reply as what it was: a message that was sent, or one that was received."""
        if call is NO_OP or call is NO_OP_SERVER_CALL:
            return
        begin_ns, stamps, sizes = call._begin_ns, call._stamps(), (call.sent_bytes, call.recv_bytes)
        if not stamps:
            return
        call.forget()
        schema, size = (SEND, sizes[0]) if self._asks else (RECEIVE, sizes[1])
        self._traffic.one_way(schema, begin_ns, stamps[0], size)

    def close(self) -> None:
        """End what got no reply."""
        while self._open:
            self._unanswered(self._open.popitem()[1])
