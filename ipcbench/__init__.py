"""Find out which transport between Python processes is best on your own machine, and use it.

>>> import ipcbench
>>> run = ipcbench.run("small")              # or a SweepSpec, or the path of a sweep file
>>> run = ipcbench.load("results/RUN_ID")    # a run measured earlier
>>> run.to_frame()                           # its figures, with pandas or polars
>>> choice = ipcbench.recommend("1MiB", readers=3, run=run)
>>> print(choice.sentence())
>>> channel = ipcbench.connect("name")       # what was measured, in use: on both sides
>>> from ipcbench import rpc                 # and calls
>>> backend = ipcbench.get_backend("shm")()  # and what both are made of
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from ipcbench import errors
    from ipcbench.analysis.library import Comparison, Run
    from ipcbench.analysis.recommend.answer import Recommendation
    from ipcbench.analysis.recommend.question import Question
    from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
    from ipcbench.channels.connect import connect
    from ipcbench.results.store import Run as StoredRun
    from ipcbench.spec import ChannelSpec, SweepSpec

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Backend",
    "Capabilities",
    "ChannelSpec",
    "Comparison",
    "Question",
    "Reader",
    "Recommendation",
    "Run",
    "SweepSpec",
    "Writer",
    "__version__",
    "compare",
    "connect",
    "errors",
    "get_backend",
    "load",
    "recommend",
    "run",
]

_HOMES = {
    "Address": "ipcbench.backend",
    "Backend": "ipcbench.backend",
    "Capabilities": "ipcbench.backend",
    "ChannelSpec": "ipcbench.spec",
    "Comparison": "ipcbench.analysis.library",
    "Question": "ipcbench.analysis.recommend.question",
    "Reader": "ipcbench.backend",
    "Recommendation": "ipcbench.analysis.recommend.answer",
    "Run": "ipcbench.analysis.library",
    "SweepSpec": "ipcbench.spec",
    "Writer": "ipcbench.backend",
    "connect": "ipcbench.channels.connect",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use."""
    from importlib import import_module

    if name == "errors":
        return import_module("ipcbench.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})


def run(sweep: SweepSpec | str | Path, results: str | Path = "results") -> Run:
    """Measure `sweep` and return the stored run.

    Backends that cannot run here are left out and named in `info.skipped`. A failed trial is in the run, with its
    reason.

    Args:
        sweep: what to measure: a SweepSpec, the name of a built-in sweep, or the path of a sweep file.
        results: folder in which the run's folder is made.

    Raises:
        ConfigError: a value of the sweep is not allowed; nothing was started.
        UnknownBackend: the sweep names a backend that is not registered; nothing was started.
    """
    from ipcbench.spec import SweepSpec
    from ipcbench.sweeps.load import load_sweep

    return _measured(sweep if isinstance(sweep, SweepSpec) else load_sweep(str(sweep)), results)


def _measured(sweep: SweepSpec, results: str | Path) -> Run:
    from pathlib import Path

    from ipcbench.harness.sweep import run_sweep

    return load(run_sweep(sweep, Path(results)))


def load(path: str | Path) -> Run:
    """Return the run stored in the folder `path`, without changing it.

    Raises:
        StoreError: `path` is not a folder of results, or cannot be read.
        SchemaMismatch: the run was written by another version of the format.
    """
    from pathlib import Path

    from ipcbench.analysis.library import Run
    from ipcbench.results.store import load_run

    return Run.of(load_run(Path(path)))


def recommend(
    size: int | str | None = None,
    readers: int | None = None,
    rate: float | str | None = None,
    needs: Iterable[str] | str = (),
    optimise: Literal["latency", "throughput", "cpu"] = "latency",
    run: StoredRun | str | Path | None = None,
    results: str | Path = "results",
    *,
    payload: str = "bytes",
    sample: str | Path | None = None,
    codec: str | None = None,
) -> Recommendation:
    """Return which transport to use for that traffic, on the evidence of a run.

    Args:
        size: of one payload: bytes (4096, "1MiB"), or entries of a dict or of records; None for a sample.
        readers: number of reading processes; None takes that of the run, or 1 if it is measured now.
        rate: messages per second that it must sustain: 500, "2k/s"; None if the rate does not matter.
        needs: what a transport must offer: "lossless,no-deps" or an iterable of names; see `ipcbench recommend --help`.
        optimise: what decides: "latency", "throughput" or "cpu".
        run: a run or its folder. Without it, the candidates are measured now, in two or three minutes.
        results: folder in which that run's folder is made.
        payload: what a message carries, a kind or "module:function"; its encoded size is what is asked for.
        sample: path of a file with the object to send, in place of size and payload.
        codec: how it is encoded; None takes "raw" for bytes, otherwise "pickle".

    Raises:
        ConfigError: a value is not allowed; nothing was measured.
        Unsupported: there is no run, and no backend meets the needs.
        StoreError: the run cannot be read.
    """
    from ipcbench.analysis.recommend.question import ask, question_sweep
    from ipcbench.analysis.recommend.recommend import recommend as choose
    from ipcbench.analysis.recommend.recommend import require_candidates
    from ipcbench.harness.prepare import encoded_bytes
    from ipcbench.results.store import Run as StoredRun

    stored = run if run is None or isinstance(run, StoredRun) else load(run)
    size_bytes = encoded_bytes(size, payload, None if sample is None else str(sample), codec)
    question = ask(size_bytes, readers, rate, needs, optimise, stored)
    if stored is None:
        stored = _measured(question_sweep(question, require_candidates(question)), results)
    return choose(stored, question)


def compare(
    a: StoredRun | str | Path,
    b: StoredRun | str | Path | None = None,
    *,
    gate: float | str | None = None,
    metrics: Iterable[str] | None = None,
    across_machines: bool = False,
) -> Comparison:
    """Compare run B with the earlier run A, cell by cell; without B, the variants of A with the first of them.

    Args:
        a: a run or its folder.
        b: a run or its folder.
        gate: how much worse a figure may get: 0.05, or "5%".
        metrics: which figures to test, such as "latency-p50"; None takes all, or with a gate the main one of each mode.
        across_machines: compare runs even if their machines differ.

    Raises:
        ConfigError: a value is not allowed, or the machines differ and `across_machines` is false.
        StoreError: a run cannot be read.
    """
    from ipcbench.analysis.compare.compare import compare_runs, compare_variants
    from ipcbench.analysis.compare.run_cells import parse_metrics
    from ipcbench.analysis.library import Comparison
    from ipcbench.results.store import Run as StoredRun
    from ipcbench.util.units import parse_ratio

    first, second = (run if run is None or isinstance(run, StoredRun) else load(run) for run in (a, b))
    ratio = parse_ratio(gate, "gate") if isinstance(gate, str) else gate
    chosen = None if metrics is None else parse_metrics(metrics)
    assert first is not None  # noqa: S101 - a is not
    if second is None:
        return Comparison.of(compare_variants(first, gate_ratio=ratio, metrics=chosen))
    found = compare_runs(first, second, gate_ratio=ratio, across_machines=across_machines, metrics=chosen)
    return Comparison.of(found)


def get_backend(name: str) -> type[Backend]:
    """Return the class of the backend registered under `name`, or given as `module:Class`; import its module.

    Raises:
        UnknownBackend: the name is not registered; the text lists those that are.
        ConfigError: `module:Class` is not a Backend.
    """
    from ipcbench.registry import get_backend as resolve

    return resolve(name)
