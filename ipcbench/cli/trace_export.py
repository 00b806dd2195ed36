"""`ipcbench trace export`, `serve-metrics` and `template`: a trace for other tools, and files that set them up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click

from ipcbench.cli.options import Choice, a_path
from ipcbench.cli.output import ListsFormats, target_file, tell, trace_paths
from ipcbench.errors import ConfigError, StoreError
from ipcbench.trace.exporters import EXPORTERS, TEMPLATES
from ipcbench.trace.exporters import template as text_of

_INSTALL_HINTS = {"pyarrow": "pip install 'ipcbench[parquet]'"}


@click.command(
    "export",
    cls=ListsFormats,
    formats={name: exporter.summary for name, exporter in EXPORTERS.items()},
    short_help="Write a trace for other tools.",
    help="""Write the calls in PATH…, trace folders or logs, in the format of another tool. stderr names everything
    that is left out.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=a_path("file"))
@click.option("--to", "form", type=Choice(list(EXPORTERS)), required=True, help="Format, see below.")
@click.option(
    "--out",
    metavar="FILE",
    shell_complete=a_path("file"),
    help="File to create or replace as a whole; by default stdout.",
)
@click.option(
    "--endpoint", metavar="URL", help="With --to otlp: send to this collector, such as http://localhost:4318."
)
def export(paths: tuple[str, ...], form: str, out: str | None, endpoint: str | None) -> None:
    """Read the calls, write them, name what is left out."""
    from ipcbench.trace.readers.everything import find

    if endpoint is not None and (form != "otlp" or out is not None):
        raise ConfigError("--endpoint", endpoint, "with --to otlp and without --out")
    target = target_file(out)
    if endpoint is None and target is None and EXPORTERS[form].binary and sys.stdout.isatty():
        raise ConfigError("--to", form, "with --out FILE, or into a pipe, because it is not text")
    source = find(trace_paths(*paths))
    if endpoint is not None:
        from ipcbench.trace.exporters.otlp import send

        count, left_out = send(source, endpoint)
        tell(f"{count:,} spans sent to {endpoint}")
    else:
        try:
            left_out = _written(target, lambda file: EXPORTERS[form](source, file))
        except ModuleNotFoundError as error:
            if error.name not in _INSTALL_HINTS:
                raise
            raise StoreError(f"--to {form} needs {error.name}: {_INSTALL_HINTS[error.name]}") from error
    for line in left_out:
        tell(f"left out: {line}")


def _written(target: Path | None, write: Callable[[IO[bytes]], tuple[str, ...]]) -> tuple[str, ...]:
    """Write into a file, as a whole or not at all, or to stdout; return what `write` returns."""
    from ipcbench.util.files import write_atomically

    if target is None:
        left_out = write(sys.stdout.buffer)
        sys.stdout.buffer.flush()  # report a closed pipe here, not after the exit
        return left_out
    returned: list[tuple[str, ...]] = []
    write_atomically(target, lambda file: returned.append(write(file)))
    return returned[0]


@click.command(
    "serve-metrics",
    short_help="Serve the sums of a trace to Prometheus.",
    help="""Answer GET /metrics with the sums of the calls recorded into DIR, until Ctrl-C. This costs the traced
    application nothing.""",
)
@click.argument("folder", metavar="DIR", shell_complete=a_path("file"))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Port; 0 chooses a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
def serve_metrics(folder: str, port: int, host: str) -> None:
    """Serve until Ctrl-C."""
    from ipcbench.trace.exporters.metrics import make_server

    (path,) = trace_paths(folder)
    if path.exists() and not path.is_dir():
        raise StoreError(f"{path}: a file, not the folder of a trace; `ipcbench trace export` reads a log")
    with make_server(path, host, port) as server:
        tell(f"http://{host}:{server.server_address[1]}/metrics")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


@click.command(
    "template",
    cls=ListsFormats,
    formats=TEMPLATES,
    title="Files",
    short_help="Print a file that sets up another tool.",
    help="Print FILE, see below, for Grafana, Elasticsearch or Filebeat.",
)
@click.argument("name", type=Choice(list(TEMPLATES)), metavar="FILE")
def template(name: str) -> None:
    """Print it."""
    sys.stdout.write(text_of(name))
