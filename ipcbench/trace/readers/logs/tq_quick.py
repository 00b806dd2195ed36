"""The quick way for ordinary [TQ-TRACE] and [TQ-DETAIL] lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from ipcbench.trace.readers.logs.tq_calls import Function, Pairing
from ipcbench.trace.readers.logs.tq_columns import END, FOREIGN, GOT, NOTHING, ODD, PART, PUT, START, Columns, columns
from ipcbench.trace.readers.logs.tq_transfers import Transfers

MARKER = "[TQ-"

LONGEST_TRACE_ID = 100
"""What is behind that is not looked at."""

_WORKER = re.compile(r"\((\S{1,100}) pid=(\d{1,20})(?:, ip=([\w.:]{1,100}))?\)")
_MOST_KNOWN = 10_000
_LONGEST_KEY_BYTES = 300
_OTHERS = "(other workers)"
_PUT_START = b" | stage=TQ_CLIENT_PUT_START | batch_size="


def _size_bytes(hundredths: int) -> int:
    """Return how many bytes so many hundredths of a MiB are."""
    return round(hundredths * 2**20 / 100)


class QuickLines:
    """Takes what it can, and hands on the rest to `odd`: what stands before a line's first marker, and behind it."""

    def __init__(self, pairing: Pairing, transfers: Transfers, odd: Callable[[str, str], None]) -> None:
        self._pairing = pairing
        self._transfers = transfers
        self._odd = odd
        self._owners: dict[tuple[bytes, bytes], tuple[Function, str]] = {}
        self._starts: dict[bytes, str] = {}
        self._workers: dict[str, str] = {}

    def feed(self, block: bytes, foreign: list[bytes]) -> int:
        """Take the lines of a block, and return how many were as usual; those without a marker go to `foreign`."""
        found = columns(block)
        kinds = found.kinds
        others = np.flatnonzero(kinds == FOREIGN)
        ends = found.ends[others].tolist()
        foreign += [block[begin:end] for begin, end in zip(found.begins[others].tolist(), ends, strict=True)]
        count = int(np.count_nonzero(kinds > ODD))
        for line in self._hand_on(block, found):
            count -= bool(kinds[line] != ODD)
            head, _, piece = block[found.begins[line] : found.ends[line]].decode("utf-8", "replace").partition(MARKER)
            self._odd(head, piece)
        return count

    def _hand_on(self, block: bytes, found: Columns) -> Iterator[int]:
        """Hand on what the lines say; yield, at its turn, the number of each that is not as usual."""
        chosen = np.flatnonzero((found.kinds != FOREIGN) & (found.kinds != NOTHING))
        kinds = found.kinds[chosen]
        shares = iter((found.hundredths[chosen[kinds == END], ::-1] / 1e4).tolist())
        owners = self._owners
        rows = zip(
            chosen.tolist(), kinds.tolist(), found.begins[chosen].tolist(), found.workers[chosen].tolist(),
            found.markers[chosen].tolist(), found.heads[chosen].tolist(), (found.at_us[chosen] * 1000).tolist(),
            (found.durations_us[chosen] * 1000).tolist(), found.hundredths[chosen, 0].tolist(), strict=True,
        )  # fmt: skip
        for line, kind, begin, worker_end, marker, head_end, at_ns, duration_ns, hundredths in rows:
            if kind == ODD:
                yield line
            elif kind >= GOT:
                places = begin, worker_end, marker, head_end
                if not self._transfer(block, places, kind, at_ns, duration_ns, hundredths):
                    yield line
            else:
                key = block[begin:worker_end], block[marker:head_end]
                owner = owners.get(key) or self._owner(key, block[begin:marker])
                ratios = next(shares) if kind == END else None
                if owner is None:
                    yield line
                elif ratios is not None:
                    owner[0].end(at_ns, duration_ns, owner[1], ratios)
                elif kind == START:
                    owner[0].begin(at_ns, owner[1])
                else:
                    owner[0].part(kind - PART, at_ns, duration_ns, owner[1])

    def _transfer(
        self, block: bytes, places: tuple[int, int, int, int], kind: int, at_ns: int, duration_ns: int, hundredths: int
    ) -> bool:
        """Take a line with [TQ-DETAIL]; return whether it is as usual."""
        begin, worker_end, marker, head_end = places
        start = block[begin:worker_end]
        worker = self._starts.get(start)
        if worker is None:
            worker = self._worker_of(block[begin:marker], start)
        if kind == GOT:
            self._transfers.got(worker, at_ns, duration_ns, _size_bytes(hundredths))
        elif kind == PUT:
            self._transfers.put(worker, at_ns, duration_ns, hundredths / 100)
        elif block.find(_PUT_START, marker, head_end) >= 0:
            self._transfers.size(worker, _size_bytes(hundredths))
        else:
            return False
        return True

    def _owner(self, key: tuple[bytes, bytes], head: bytes) -> tuple[Function, str] | None:
        """Return whose a line with that beginning is, and its trace id; None if that is not as usual."""
        trace_id, _, name = key[1].decode("utf-8", "replace")[len("[TQ-TRACE] trace_id=") :].partition(" | func=")
        name = name.partition(" | pid=")[0]
        if not trace_id or not name or " | " in trace_id or " | " in name:
            return None
        worker = self._starts.get(key[0])
        if worker is None:
            worker = self._worker_of(head, key[0])
        owner = self._pairing.function(worker, name), trace_id[:LONGEST_TRACE_ID]
        if key[0] in self._starts and len(key[1]) <= _LONGEST_KEY_BYTES:
            if len(self._owners) >= _MOST_KNOWN:
                self._owners.clear()
            self._owners[key] = owner
        return owner

    def _worker_of(self, head: bytes, start: bytes) -> str:
        """Return the worker that a line's beginning names, and know it if `start` alone tells it.

        It does if it ends with the worker's parentheses, or if there are none.
        """
        worker = self.worker(head.decode("utf-8", "replace"))
        tells = not start or self.worker(start.decode("utf-8", "replace")) != ""
        if tells and len(start) <= _LONGEST_KEY_BYTES and len(self._starts) < _MOST_KNOWN:
            self._starts[start] = worker
        return worker

    def worker(self, head: str) -> str:
        """Return the worker that a line's beginning names, as Ray does: `(name pid=1, ip=2)`; empty if none."""
        match = _WORKER.search(head) if "pid=" in head else None
        if match is None:
            return ""
        worker = self._workers.get(match[0])
        if worker is None:
            worker = f"{match[1]} pid={match[2]}" + (f" ip={match[3]}" if match[3] else "")
            if len(self._workers) >= _MOST_KNOWN:
                return _OTHERS
            self._workers[match[0]] = worker
        return worker
