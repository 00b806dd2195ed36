"""What all formats share: the usable trials, names of series, and the list of what was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ipcbench.analysis.summary.cells import Setting
from ipcbench.analysis.summary.notes import failure_reason, is_sound, one_line
from ipcbench.analysis.summary.wording import size_words
from ipcbench.errors import StoreError
from ipcbench.results.model import TrialResult
from ipcbench.results.store import Run
from ipcbench.spec import Mode
from ipcbench.stats.estimates import IntArray

# Values that a name omits. They are not taken from the defaults of a sweep: if a default changes, a series must not
# continue under its old name with another meaning.
_OMITTED = {
    "delivery": "every_message",
    "codec": "pickle",
    "depth": 64,
    "wait": "auto",
    "pin": "none",
    "touch": "header",
    "neighbours": 0,
}
_OMITTED_RATE_PER_S = 1000.0
_OMITTED_RATE_BYTES_PER_S = 100e6


@dataclass(frozen=True, slots=True)
class Export:
    """A run in another tool's format."""

    text: str
    left_out: tuple[str, ...]
    """What is missing and why, one line each."""
    fewer_rounds: tuple[str, ...] = ()
    """Which series have fewer rounds than others, where the tool minds; one line each."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The trials of a run that enter a format."""

    run: Run
    trials: tuple[TrialResult, ...]
    """Sound trials of the modes asked for, in the order of execution."""
    left_out: list[str] = field(default_factory=list)
    """Grows as the format finds more that it cannot use."""

    def leave_out(self, trial: TrialResult, reason: str) -> None:
        """Note that a trial, or part of it, is not in the export."""
        self.left_out.append(f"{trial_words(trial)}: {one_line(reason)}")

    def samples(self, trial: TrialResult) -> dict[str, IntArray]:
        """Return the columns of a trial; without readable columns, leave it out and return nothing."""
        try:
            columns = self.run.samples(trial.trial_id)
        except StoreError as error:
            self.leave_out(trial, str(error))
            return {}
        if not columns:
            self.leave_out(trial, "it has no samples")
        return columns

    def check_samples(self) -> None:
        """Leave out every trial whose figures come from samples but which has no readable ones."""
        for trial in self.trials:
            if trial.spec.mode != "saturate":
                self.samples(trial)

    def export(self, text: str) -> Export:
        """Return the finished export."""
        return Export(text, tuple(dict.fromkeys(self.left_out)))

    def require(self, content: object, what: str) -> None:
        """Raise StoreError, with the reason, if there is nothing to write; `what` names what was looked for."""
        if not content:
            because = f": {self.left_out[0]}" if self.left_out else ""
            raise StoreError(f"{self.run.path}: holds no {what}{because}")


def select(run: Run, modes: Sequence[Mode], what: str) -> Selection:
    """Return the sound trials of these modes; the others, and skipped backends, are noted as left out.

    Args:
        run: the stored run.
        modes: the modes that the format can show.
        what: name of the format, for the error.

    Raises:
        StoreError: there is no such trial.
    """
    asked = [trial for trial in run.trials if trial.spec.mode in modes]
    selection = Selection(run, tuple(trial for trial in asked if is_sound(trial)))
    selection.left_out.extend(f"{name}: {one_line(reason)}" for name, reason in run.info.skipped.items())
    if run.pattern_trials:
        selection.left_out.append("queues, fan-in and rpc: this format has no place for them")
    for trial in asked:
        if not is_sound(trial):
            status = "failed" if trial.status == "ok" else trial.status
            selection.leave_out(trial, f"{status}: {failure_reason([trial])}")
    selection.require(selection.trials, f"trial for {what}: it takes one of mode {' or '.join(modes)} that is ok")
    return selection


def trial_words(trial: TrialResult) -> str:
    """Return how a trial is named in messages: number, backend, size, mode and round."""
    spec = trial.spec
    size = size_words(Setting.of(trial))
    return f"trial {trial.trial_id} ({spec.backend}, {spec.payload} of {size}, {spec.mode}, round {spec.round_index})"


def size_name(setting: Setting) -> str:
    """Return `dict-1000-55039B`: kind, size in its own unit, bytes as sent."""
    return f"{setting.payload}-{setting.size}-{setting.payload_bytes}B"


def cell_parts(setting: Setting, backend: str, rate_per_s: float | None) -> tuple[str, ...]:
    """Return the parts of a series' name without its metric: backend, payload, readers, and unusual values.

    Args:
        setting: of the cell.
        backend: of the cell.
        rate_per_s: offered rate of paced trials; None for other modes.

    Returns:
        The same parts for every run of the same measurement: no host, version or time.
    """
    usual = round(min(_OMITTED_RATE_PER_S, _OMITTED_RATE_BYTES_PER_S / max(1, setting.payload_bytes)), 3)
    unusual = [f"{name}-{value}" for name, omitted in _OMITTED.items() if (value := getattr(setting, name)) != omitted]
    if rate_per_s is not None and rate_per_s != usual:
        unusual.append(f"rate-{rate_per_s:g}")
    return backend, size_name(setting), f"r{setting.readers}", *unusual


def series_name(setting: Setting, backend: str, rate_per_s: float | None, metric: str) -> str:
    """Return `zmq/dict-1000-55039B/r3/one-way-p50`, see `cell_parts`."""
    return "/".join((*cell_parts(setting, backend, rate_per_s), metric))


def rate_of(trial: TrialResult) -> float | None:
    """Return the offered rate of a paced trial; None for other modes."""
    return trial.spec.rate_per_s if trial.spec.mode == "paced" else None


@dataclass(frozen=True, slots=True, eq=False)
class MatchedRows:
    """Which stored rows of a reader and of the writer belong to the same message; both have shape (n,)."""

    reader: IntArray
    writer: IntArray


def matched_rows(columns: Mapping[str, IntArray], role: str) -> MatchedRows | None:
    """Return which rows of a reader of a paced trial match which rows of the writer.

    A receipt minus its latency is the intended time, which the writer stored too; so thinned columns can be joined as
    well as whole ones. None if a column is missing or does not fit the others.
    """
    received, latency = columns.get(f"{role}.received_ns"), columns.get(f"{role}.latency_ns")
    intended, sent = columns.get("writer.intended_ns"), columns.get("writer.sent_ns")
    if received is None or latency is None or intended is None or sent is None:
        return None
    if received.size != latency.size or intended.size != sent.size or not intended.size:
        return None
    wanted = received - latency
    place = np.minimum(np.searchsorted(intended, wanted), intended.size - 1)
    hit = np.flatnonzero(intended[place] == wanted)
    return MatchedRows(hit, place[hit].astype(np.int64))
