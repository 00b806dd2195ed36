"""Find out which transport between Python processes is best on your own machine, and use it.

>>> import ipcbench
>>> run = ipcbench.run("small")              # or a SweepSpec, or the path of a sweep file
>>> run = ipcbench.load("results/RUN_ID")    # a run measured earlier
>>> choice = ipcbench.recommend("1MiB", readers=3, run=run)
>>> print(choice.sentence())
>>> backend = ipcbench.get_backend("shm")()  # the code that was measured, as a library
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from ipcbench import errors
    from ipcbench.analysis.recommend.answer import Recommendation
    from ipcbench.analysis.recommend.question import Question
    from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
    from ipcbench.results.store import Run
    from ipcbench.spec import ChannelSpec, SweepSpec

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Backend",
    "Capabilities",
    "ChannelSpec",
    "Question",
    "Reader",
    "Recommendation",
    "SweepSpec",
    "Writer",
    "__version__",
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
    "Question": "ipcbench.analysis.recommend.question",
    "Reader": "ipcbench.backend",
    "Recommendation": "ipcbench.analysis.recommend.answer",
    "SweepSpec": "ipcbench.spec",
    "Writer": "ipcbench.backend",
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

    from ipcbench.results.store import load_run

    return load_run(Path(path))


def recommend(
    payload: int | str,
    readers: int = 1,
    rate: float | str | None = None,
    needs: Iterable[str] | str = (),
    optimise: Literal["latency", "throughput", "cpu"] = "latency",
    run: Run | str | Path | None = None,
    results: str | Path = "results",
) -> Recommendation:
    """Return which transport to use for that traffic, on the evidence of a run.

    Args:
        payload: encoded size of one payload, in bytes: 4096, "1MiB".
        readers: number of reading processes.
        rate: messages per second that it must sustain: 500, "2k/s"; None if the rate does not matter.
        needs: what a transport must offer: "lossless,no-deps" or an iterable of names; see `ipcbench recommend --help`.
        optimise: what decides: "latency", "throughput" or "cpu".
        run: a run or its folder. Without it, the candidates are measured now, in a minute or two.
        results: folder in which that run's folder is made.

    Raises:
        ConfigError: a value is not allowed; nothing was measured.
        Unsupported: there is no run, and no backend meets the needs.
        StoreError: the run cannot be read.
    """
    from ipcbench.analysis.recommend.question import ask, question_sweep
    from ipcbench.analysis.recommend.recommend import recommend as choose
    from ipcbench.analysis.recommend.recommend import require_candidates
    from ipcbench.results.store import Run as StoredRun

    question = ask(payload, readers, rate, needs, optimise)
    if run is None:
        sweep = question_sweep(question, require_candidates(question))
        return choose(_measured(sweep, results), question)
    return choose(run if isinstance(run, StoredRun) else load(run), question)


def get_backend(name: str) -> type[Backend]:
    """Return the class of the backend registered under `name`, or given as `module:Class`; import its module.

    Raises:
        UnknownBackend: the name is not registered; the text lists those that are.
        ConfigError: `module:Class` is not a Backend.
    """
    from ipcbench.registry import get_backend as resolve

    return resolve(name)
