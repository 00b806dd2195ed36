"""Runs and comparisons as the library hands them out: in a line, as a table in a notebook, as a data frame."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Literal, Self

from ipcbench.analysis.compare import compare
from ipcbench.analysis.compare.render import as_html
from ipcbench.analysis.report.render import csv_rows
from ipcbench.analysis.report.tables import Tables, tables
from ipcbench.errors import ConfigError, Unsupported
from ipcbench.render.page import fragment_html
from ipcbench.results.store import Run as StoredRun

FrameLibrary = Literal["pandas", "polars"]
_FRAME_LIBRARIES: tuple[FrameLibrary, ...] = ("pandas", "polars")


@dataclass(frozen=True, slots=True, repr=False)
class Run(StoredRun):
    """A stored run, read only."""

    @classmethod
    def of(cls, run: StoredRun) -> Self:
        """Return a run that was read from its folder."""
        return cls(**{field.name: getattr(run, field.name) for field in fields(StoredRun)})

    def to_frame(self, library: FrameLibrary | None = None) -> Any:
        """Return the figures as a data frame: one row per backend and setting, the columns of `summary.csv`.

        Units are in the names of the columns. A figure that was not measured is missing: NaN or None in pandas, null in
        polars.

        Args:
            library: "pandas" or "polars"; None takes pandas if it is installed, else polars.

        Raises:
            ConfigError: another library.
            Unsupported: it, or either, is not installed.
        """
        if library not in (None, *_FRAME_LIBRARIES):
            raise ConfigError("library", library, _FRAME_LIBRARIES)
        wanted = _FRAME_LIBRARIES if library is None else (library,)
        found = next((name for name in wanted if find_spec(name) is not None), None)
        if found is None:
            raise Unsupported(f"a frame needs {' or '.join(wanted)}; pip install {wanted[0]}")
        rows, names = csv_rows(self._tables())
        if found == "pandas":
            import pandas as pd

            return pd.DataFrame(rows, columns=names)
        import polars as pl

        return pl.DataFrame(rows, schema=names, infer_schema_length=None, orient="row")

    def _tables(self) -> Tables:
        return tables(self)

    def __repr__(self) -> str:
        """Return what it is in a line."""
        trials = self.trials + self.pattern_trials
        backends = len(dict.fromkeys(trial.spec.backend for trial in trials))
        sizes = len(dict.fromkeys(trial.spec.payload_bytes for trial in trials))
        shape = f"{backends} backends, {sizes} sizes, {self.info.rounds_done} rounds, {len(trials)} trials"
        return f"<Run {self.info.run_id}: {shape}, {self.info.status}>"

    def _repr_html_(self) -> str | None:
        shown = self._tables()
        answers = [("Answers", [answer.sentence for answer in shown.answers])]
        return fragment_html(repr(self).strip("<>"), (*shown.matrices, *shown.pattern_tables), answers)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(compare.Comparison):
    """Run B against run A, or variants of one run against the first of them."""

    @classmethod
    def of(cls, comparison: compare.Comparison) -> Self:
        """Return a comparison that shows itself."""
        return cls(**{field.name: getattr(comparison, field.name) for field in fields(compare.Comparison)})

    def _repr_html_(self) -> str | None:
        return as_html(self)
