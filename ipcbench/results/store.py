"""Runs on disk: each trial is stored durably as it ends, and a stored run is read without changing it.

run.json              RunInfo; replaced as a whole
trials.jsonl          one TrialResult per line, appended and synced, so that a killed run loses no finished trial
samples/<trial>.npz   int64 columns, written before the trial's line
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ipcbench.errors import SchemaMismatch, StoreError
from ipcbench.results.columns import Column, read_columns, write_columns
from ipcbench.results.model import SCHEMA_VERSION, RunInfo, TrialResult
from ipcbench.results.parse import parse_json, to_record
from ipcbench.spec import Pattern, SweepSpec
from ipcbench.sync.interrupts import uninterrupted
from ipcbench.util.files import as_store_errors, path_inside, read_limited, to_json, write_atomically

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INFO_FILE = "run.json"
TRIALS_FILE = "trials.jsonl"
SAMPLES_FOLDER = "samples"

_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
_MAX_INFO_BYTES = 16 * 2**20
_MAX_TRIALS_BYTES = 2**30
_MAX_LINE_BYTES = 16 * 2**20
_END_OF_TIME_S = 2e11
"""In the year 8307: later than any date that programs can write."""
_MALFORMED = (ValueError, TypeError, KeyError, RecursionError)


def new_run_id() -> str:
    """Return a name for a run: the UTC time, so that names sort by it, and a random part."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def latest_run(root: Path) -> Path:
    """Return the latest run in `root`; only folders named by `new_run_id` count.

    Raises:
        StoreError: there is none.
    """
    stored = _runs_in(root)
    runs = [path for path in stored if _RUN_ID.fullmatch(path.name)]
    if not runs:
        named = f", or name one: {stored[-1]}" if stored else ""
        raise StoreError(f"{root}: holds no run yet; `ipcbench run` makes one{named}")
    return runs[-1]


def latest_pattern_run(root: Path, pattern: Pattern) -> Path | None:
    """Return the latest run of a queue or fan-in in `root`; None if there is none. Runs that cannot be read are passed
    over.
    """
    for path in reversed(_runs_in(root)):
        with suppress(StoreError):
            if _load_info(path).sweep.get("pattern") == pattern:
                return path
    return None


def _runs_in(folder: Path) -> list[Path]:
    """Return the folders of results in a folder, by name."""
    return sorted(file.parent for file in folder.glob(f"*/{INFO_FILE}") if file.is_file())


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run, read only."""

    path: Path
    info: RunInfo
    trials: tuple[TrialResult, ...]
    """In the order of execution."""
    controls: tuple[TrialResult, ...]
    """A/A controls: second measurements of a cell (`TrialSpec.twin`), used only to check the verdicts."""
    problems: tuple[str, ...]
    """Defects of the folder that did not prevent reading it, one line each."""
    pattern_trials: tuple[TrialResult, ...] = ()
    """Trials of queues, fan-in and rpc, in the order of execution; no other table, comparison or export shows them."""

    @property
    def all_trials(self) -> tuple[TrialResult, ...]:
        """Return every trial of the run."""
        return self.trials + self.controls + self.pattern_trials

    def samples(self, trial_id: int, endings: tuple[str, ...] = ("",)) -> dict[str, npt.NDArray[np.int64]]:
        """Read the columns of a trial: `writer.sent_ns`, `reader-0.latency_ns` …; empty if it has none. With `endings`,
        read only those whose names end with one of them.

        Raises:
            StoreError: there is no such trial, or its file cannot be read.
        """
        trial = next((trial for trial in self.all_trials if trial.trial_id == trial_id), None)
        if trial is None:
            raise StoreError(f"{self.path}: there is no trial {trial_id}")
        if not trial.has_samples:
            return {}
        path = path_inside(self.path, f"{SAMPLES_FOLDER}/{trial_id}.npz")
        with as_store_errors(path):
            return read_columns(path, endings)


def load_run(path: Path) -> Run:
    """Read a run; a last line cut off by a kill is left out and reported in `Run.problems`.

    Raises:
        StoreError: not a results folder, a link out of it, or a malformed file; the text names file, line and value.
        SchemaMismatch: written by another version of the format.
    """
    info = _load_info(path)
    trials, _, problems = _load_trials(path_inside(path, TRIALS_FILE))
    missing = [
        trial.trial_id
        for trial in trials
        if trial.has_samples and not (path / SAMPLES_FOLDER / f"{trial.trial_id}.npz").is_file()
    ]
    if missing:
        problems.append(f"{SAMPLES_FOLDER}/: files of {len(missing)} trials are missing, the first is {missing[0]}.npz")
    return Run(
        path=path,
        info=info,
        trials=tuple(trial for trial in trials if not trial.spec.twin and trial.spec.pattern == "broadcast"),
        controls=tuple(trial for trial in trials if trial.spec.twin),
        problems=tuple(problems),
        pattern_trials=tuple(trial for trial in trials if trial.spec.pattern != "broadcast"),
    )


def stored_sweep(run: Run) -> SweepSpec:
    """Return what a run was to measure.

    Raises:
        StoreError: a value is not of the kind that it must be; the text names file, field and value.
        ConfigError: a value is not allowed.
    """
    try:
        return to_record(run.info.sweep, SweepSpec)
    except _MALFORMED as error:
        raise StoreError(f"{run.path / INFO_FILE}: malformed: sweep: {_describe(error)}") from error


class RunWriter:
    """The only writer of a run; a context manager made with `create` or `resume`.

    Every method raises StoreError if the system refuses; what was stored before stays intact.

    Attributes:
        path: the run's folder.
        info: the contents of run.json.
        next_trial_id: number of the trial that `append` expects next.
    """

    def __init__(self, path: Path, info: RunInfo, fd: int, next_trial_id: int) -> None:
        self.path = path
        self.info = info
        self.next_trial_id = next_trial_id
        self._fd = fd
        self._end = os.fstat(fd).st_size

    @classmethod
    def create(cls, path: Path, info: RunInfo) -> Self:
        """Make the folder `path`, and its parents, and store `info` there.

        Raises:
            StoreError: the folder exists and is not empty, or `info` cannot be stored; then nothing is made.
        """
        to_json(asdict(info), INFO_FILE)
        with as_store_errors(path):
            _make_folder(path)
            if any(path.iterdir()):
                raise StoreError(f"{path}: exists already and is not empty; choose another folder, or resume the run")
            with ExitStack() as undo:  # so that it can be tried again
                (path / SAMPLES_FOLDER).mkdir()
                undo.callback((path / SAMPLES_FOLDER).rmdir)
                fd = os.open(path / TRIALS_FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                undo.callback((path / TRIALS_FILE).unlink)
                undo.callback(os.close, fd)
                _lock(fd, path)
                writer = cls(path, info, fd, 0)
                undo.callback((path / INFO_FILE).unlink, missing_ok=True)
                writer.update(info)
                undo.pop_all()
        return writer

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open a stored run to continue it; a last line that was cut off is removed.

        Raises:
            StoreError: as `load_run`, or another process is writing the run.
        """
        info = _load_info(path)
        trials_file = path_inside(path, TRIALS_FILE)
        with as_store_errors(path):
            fd = os.open(trials_file, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                _lock(fd, path)
                trials, end, _ = _load_trials(trials_file)
                os.ftruncate(fd, end)
                (path / SAMPLES_FOLDER).mkdir(exist_ok=True)
                return cls(path, info, fd, 1 + max((trial.trial_id for trial in trials), default=-1))
            except BaseException:
                os.close(fd)
                raise

    def update(self, info: RunInfo) -> None:
        """Replace run.json as a whole: a reader sees the old one or the new one."""
        text = to_json(asdict(info), INFO_FILE, indent=2)
        write_atomically(self.path / INFO_FILE, lambda file: file.write(f"{text}\n".encode()))
        self.info = info

    def append(self, result: TrialResult, samples: Mapping[str, Column] | None = None) -> None:
        """Store one trial; when this returns, it is on the disk. What a signal handler raises meanwhile comes after it.

        Args:
            result: its `trial_id` must be `next_trial_id`; `has_samples` is set here.
            samples: name → column of integers, of shape (n,).

        Raises:
            StoreError: also if a figure is not finite, or a column does not hold integers.
        """
        if result.trial_id != self.next_trial_id:
            raise StoreError(f"{self.path}: trial {result.trial_id} is not the next one, {self.next_trial_id}")
        line = to_json(asdict(replace(result, has_samples=bool(samples))), f"trial {result.trial_id}")
        path = self.path / SAMPLES_FOLDER / f"{result.trial_id}.npz"

        def store() -> None:
            if samples:
                write_atomically(path, lambda file: write_columns(file, samples))
            self._append_line(f"{line}\n".encode())
            self.next_trial_id += 1

        uninterrupted(store)

    def _append_line(self, line: bytes) -> None:
        with as_store_errors(self.path / TRIALS_FILE):
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._fd, line[written:])
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, self._end)  # a full disk must not leave half a line in the middle
                raise
            self._end += len(line)

    def close(self) -> None:
        """Release the run; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = error.filename or path
        raise StoreError(f"{where}: the folder cannot be made ({error.strerror}); choose another one") from error


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(f"{path}: another process is writing this run") from error


def _load_info(path: Path) -> RunInfo:
    if not (path / INFO_FILE).is_file():
        raise StoreError(f"{path}: not a folder of results{_what_is_meant(path)}")
    file = path_inside(path, INFO_FILE)
    data = read_limited(file, _MAX_INFO_BYTES)
    try:
        values = parse_json(data)
        version = values["schema_version"]
        info = to_record(values, RunInfo) if version == SCHEMA_VERSION else None
        if info is not None:
            _check_time(info)
    except _MALFORMED as error:
        raise StoreError(f"{file}: malformed: {_describe(error)}") from error
    if info is None:
        raise SchemaMismatch(f"{file}: written in format {version!r}; this ipcbench reads format {SCHEMA_VERSION}")
    return info


def _what_is_meant(path: Path) -> str:
    """Return which folder of results a path may stand for, or why it is none."""
    runs = _runs_in(path)
    if runs:
        return f", but of several such folders; name one of them, such as {runs[-1]}"
    if (path.parent / INFO_FILE).is_file():
        return f", but in one; name {path.parent}"
    return f"; it has no {INFO_FILE}" if path.exists() else "; there is no such folder, `ipcbench run` makes one"


def _load_trials(path: Path) -> tuple[list[TrialResult], int, list[str]]:
    """Return the trials, the end of the last whole line, and problems."""
    trials: list[TrialResult] = []
    problems: list[str] = []
    data = read_limited(path, _MAX_TRIALS_BYTES)
    end = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
        try:
            trials.append(_parse_trial(line, trials[-1].trial_id if trials else -1))
        except _MALFORMED as error:
            raise StoreError(f"{path}: line {number} is malformed: {_describe(error)}") from error
    if end < len(data):
        whole = f"{len(trials)} whole line{'s were' if len(trials) != 1 else ' was'} read"
        problems.append(f"{TRIALS_FILE}: line {len(trials) + 1} is cut off; {whole}")
    return trials, end, problems


def _parse_trial(line: bytes, previous_id: int) -> TrialResult:
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"it has {len(line):,} bytes")
    trial = to_record(parse_json(line), TrialResult)
    _check_time(trial)
    if trial.trial_id <= previous_id:
        raise ValueError(f"trial {trial.trial_id} follows trial {previous_id}")
    return trial


def _check_time(record: RunInfo | TrialResult) -> None:
    if not 0 <= record.started_unix_s < _END_OF_TIME_S:
        raise ValueError(f"started_unix_s is {record.started_unix_s:g}, which is no time of a run")


def _describe(error: Exception) -> str:
    """Return a parser's error in one line, and what to do."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return f"{' '.join(text.split())}; restore the file, or measure anew"
