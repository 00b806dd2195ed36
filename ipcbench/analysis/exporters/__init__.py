"""A stored run in the formats of other tools: format name → the function that writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipcbench.analysis.exporters.common import Export
    from ipcbench.results.store import Run


@dataclass(frozen=True, slots=True)
class Exporter:
    """One format; call it with a run to get the text and what was left out."""

    summary: str
    """One line for help texts."""
    module: str
    function: str

    def __call__(self, run: Run) -> Export:
        """Return the run in this format.

        Raises:
            StoreError: the run has no trial that this format can use.
        """
        module = import_module(f"{__name__}.{self.module}")
        export: Export = getattr(module, self.function)(run)
        return export


EXPORTERS: Mapping[str, Exporter] = {
    "pyperf": Exporter("pyperf JSON 1.0, a run per round, for `pyperf stats` and `compare_to`", "pyperf", "as_pyperf"),
    "github-latency": Exporter("github-action-benchmark, customSmallerIsBetter", "github", "as_github_latency"),
    "github-throughput": Exporter("github-action-benchmark, customBiggerIsBetter", "github", "as_github_throughput"),
    "hlog": Exporter("HdrHistogram log 1.3, a tag per series", "hlog", "as_hlog"),
    "osu": Exporter("text in the format of the OSU micro-benchmarks, latency and bandwidth", "osu", "as_osu"),
    "perfetto": Exporter("Chrome JSON trace of the worst outliers, for ui.perfetto.dev", "chrome", "as_chrome"),
}
"""Name of the format, as `ipcbench export --to` takes it → its exporter."""
