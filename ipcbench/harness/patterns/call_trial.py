"""One trial of rpc: clients call a server, and the first of them makes plain round trips with the same transport."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ipcbench.errors import TrialError
from ipcbench.harness.digest import Column, quantiles
from ipcbench.harness.patterns.calls import NUMBER_BYTES
from ipcbench.harness.patterns.digest import Receipts
from ipcbench.harness.patterns.trial import PatternTrial
from ipcbench.results.model import CallCost, TrialResult
from ipcbench.spec import ChannelSpec
from ipcbench.workload.message import Phase

_SERVER, _FIRST_CLIENT = 0, 1


class CallTrial(PatternTrial):
    """Carries out a trial of rpc. Before the windows of a pattern it has one with one call at a time."""

    _cost: CallCost | None = None
    _role = "client"

    @property
    def _writers(self) -> Sequence[int]:
        return self._peers

    @property
    def _takers(self) -> Sequence[int]:
        return (_SERVER,)

    def _channels(self) -> Iterable[ChannelSpec]:
        """Yield the channels of the plain round trips: from the first client, and back."""
        for size_bytes in (self._trial.payload_bytes, self._trial.reply_bytes):
            yield ChannelSpec(
                name=self._run_dir.channel_name(),
                max_message_bytes=NUMBER_BYTES + size_bytes,
                depth=self._trial.depth,
                wait=self._trial.wait,
            )

    def _open_request(self) -> dict[str, Any]:
        token, _, number = self._addresses[0].channel.name.rpartition("-")
        return {**super()._open_request(), "server": f"{token.rpartition('-')[2]}-{number}"}  # the janitor knows it so

    def _warm_up(self) -> None:
        self._look_around()
        if self._clocks.offsets:
            raise TrialError("rpc takes processes with one clock; these have several")
        self._offer(self._trial.warmup_s, 0.0, Phase.WARMUP)

    def _take_turn(self) -> None:
        if self._cost is None:
            self._cost = self._alone(self._trial.window_s / self._trial.turns)
        else:
            super()._take_turn()

    def _too_few(self, batches: float, window_s: float) -> str:
        return (
            f"a client made {batches:.1f} calls in {window_s:g} s, too few for a rate: take a shorter --service, "
            "smaller messages, or fewer clients"
        )

    def _alone(self, window_s: float) -> CallCost:
        questions: dict[int, dict[str, Any]] = {
            _SERVER: {"do": "echo plain"},
            _FIRST_CLIENT: {"do": "alone", "window_ns": int(1e9 * window_s)},
        }
        self._group.tell(questions)
        answer = self._hear(questions)[_FIRST_CLIENT]
        plain, call = (quantiles(np.frombuffer(answer[name], np.int64)) for name in ("plain", "call"))
        assert plain is not None  # noqa: S101 - it makes some trips
        assert call is not None  # noqa: S101 - as above
        return CallCost(plain, call)

    def _finish(self) -> None:
        self._answers = self._ask_writers({"do": "finish"})
        self._answers |= self._hear_from({_SERVER: {"do": "finish"}})

    def _hear_from(self, questions: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        self._group.tell(questions)
        return self._hear(questions)

    def _record(
        self, answers: dict[int, dict[str, Any]], others_cpu_ratio: float | None
    ) -> tuple[TrialResult, dict[str, Column]]:
        clients = len(self._writers)
        columns = [answers[index]["columns"] for index in self._writers]
        for index, column in enumerate(columns):
            count = len(column["received_ns"]) // 8
            column["number"] = (index + clients * np.arange(count, dtype=np.int64)).tobytes()
        receipts = Receipts.of(columns)
        windows = tuple(receipts.window(step, 1, by_writer=True, times_all=True) for step in self._steps)
        result = TrialResult(
            trial_id=self._trial_id,
            spec=self._trial,
            status="ok",
            reason="",
            started_unix_s=0.0,
            duration_s=0.0,
            endpoints=tuple(self._endpoint(index, answers[index]["facts"]) for index in sorted(answers)),
            throughput_per_s=windows[0].rate_per_s,
            windows=windows,
            cost=self._cost,
        )
        return result, {}
