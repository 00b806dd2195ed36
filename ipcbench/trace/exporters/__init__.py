"""A trace in the formats of other tools, and files that set such tools up: a table of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ipcbench.trace.readers.everything import Source


@dataclass(frozen=True, slots=True)
class Exporter:
    """One format; called with a trace and a file it writes, and returns what was left out, a line each."""

    summary: str
    """What it is for, in a line."""
    module: str
    binary: bool = False
    """Whether it is nothing for a terminal."""

    def __call__(self, source: Source, out: IO[bytes]) -> tuple[str, ...]:
        """Write the trace.

        Raises:
            StoreError: it cannot be read, or holds nothing that this format could be made from.
            ModuleNotFoundError: of a library that the format needs.
        """
        module = import_module(f"{__name__}.{self.module}")
        left_out: tuple[str, ...] = module.write(source, out)
        return left_out


EXPORTERS: Mapping[str, Exporter] = {
    "csv": Exporter("one row per call, under the column names of zmq_performance.log", "csv_rows"),
    "prometheus": Exporter("Prometheus text: histograms and counters of all calls", "prometheus"),
    "otlp": Exporter("OpenTelemetry spans as OTLP JSON, a line per 500; with --endpoint sent by HTTP", "otlp"),
    "zipkin": Exporter("Zipkin's JSON (v2): a list of spans, their stages as annotations and tags", "zipkin"),
    "perfetto": Exporter("Perfetto protobuf, for ui.perfetto.dev", "perfetto", binary=True),
    "chrome": Exporter("Chrome trace JSON, for chrome://tracing and others", "chrome"),
    "parquet": Exporter("Apache Parquet, one row per call; needs pyarrow", "parquet", binary=True),
}
"""Name of the format → what writes it."""

TEMPLATES: Mapping[str, str] = {
    "grafana.json": "Grafana dashboard of the metrics that `ipcbench trace serve-metrics` serves to Prometheus",
    "elasticsearch-template.json": "Elasticsearch index template for the lines of `ipcbench trace tail --format jsonl`",
    "elasticsearch-pipeline.json": "Elasticsearch ingest pipeline that makes documents of these lines",
    "filebeat.yml": "Filebeat configuration that sends these lines from its stdin",
}
"""Name of a file in assets/ → what it is for."""


def template(name: str) -> str:
    """Return one of `TEMPLATES`."""
    return files(__name__).joinpath("assets", name).read_text(encoding="utf-8")
