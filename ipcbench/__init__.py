"""Which transport between Python processes to use, measured on your own machine, and that transport to use.

What does not live here: anything but the public names. Importing this loads none of them, and nothing third-party; each
is loaded when it is first looked at.

    >>> import ipcbench
    >>> run = ipcbench.run("small")              # or a SweepSpec, or the path of a sweep file
    >>> run = ipcbench.load("results/RUN_ID")    # a run measured earlier
    >>> backend = ipcbench.get_backend("shm")()  # the code that was measured, as a library
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from ipcbench import errors
    from ipcbench.backend import Address, Backend, Capabilities, Reader, Writer
    from ipcbench.spec import ChannelSpec, SweepSpec
    from ipcbench.store import Run

__version__ = "0.1.0"

__all__ = [
    "Address",
    "Backend",
    "Capabilities",
    "ChannelSpec",
    "Reader",
    "SweepSpec",
    "Writer",
    "__version__",
    "errors",
    "get_backend",
    "load",
    "run",
]

_HOMES = {
    "Address": "ipcbench.backend",
    "Backend": "ipcbench.backend",
    "Capabilities": "ipcbench.backend",
    "ChannelSpec": "ipcbench.spec",
    "Reader": "ipcbench.backend",
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

    Backends that cannot run here are left out and named in `info.skipped`. A trial that fails is in the run, with its
    reason.

    Args:
        sweep: what to measure: a SweepSpec, the name of a built-in sweep, or the path of a sweep file.
        results: folder in which the run's own folder is made.

    Raises:
        ConfigError: a value of the sweep is not allowed; nothing was started.
        UnknownBackend: the sweep names one that is not registered; nothing was started.
    """
    from pathlib import Path

    from ipcbench.harness.sweep import run_sweep
    from ipcbench.spec import SweepSpec
    from ipcbench.sweepfile import load_sweep

    spec = sweep if isinstance(sweep, SweepSpec) else load_sweep(str(sweep))
    return load(run_sweep(spec, Path(results)))


def load(path: str | Path) -> Run:
    """Return the run stored in the folder `path`; reads only.

    Raises:
        StoreError: not a folder of results, or it cannot be read.
        SchemaMismatch: written by another version of the format.
    """
    from pathlib import Path

    from ipcbench.store import load_run

    return load_run(Path(path))


def get_backend(name: str) -> type[Backend]:
    """Return the class of the backend registered under `name`, or given as `module:Class`; imports its module.

    Raises:
        UnknownBackend: not registered; the text lists what is.
        ConfigError: `module:Class` does not lead to a Backend.
    """
    from ipcbench.registry import get_backend as resolve

    return resolve(name)
