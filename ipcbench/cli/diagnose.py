"""`ipcbench diagnose`: which transport is really in use, what it costs, and what would help."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from ipcbench.cli import EXIT_FAILED, EXIT_INCONCLUSIVE
from ipcbench.cli.options import (
    DTYPES,
    a_path,
    backend_names,
    duration,
    format_option,
    one_of,
    one_word,
    progress_options,
    several,
    whole,
)
from ipcbench.cli.output import FORMATS, command_line, one_or_list, tell, trace_paths
from ipcbench.cli.report_files import require_page, write_page
from ipcbench.errors import ConfigError
from ipcbench.util.shell import shell_command
from ipcbench.util.text import printable

if TYPE_CHECKING:
    from ipcbench.diagnose.attribution import Attribution
    from ipcbench.diagnose.diagnosis import Diagnosis
    from ipcbench.diagnose.stepwise import Framing
    from ipcbench.diagnose.stepwise import Request as UserRequest
    from ipcbench.models import Model
    from ipcbench.replay.run import Request
    from ipcbench.replay.traffic import Traffic
    from ipcbench.trace.report.words import Language

_MOST_DIGITS = 10
"""Of a process's number."""
_MOST_BUDGET_S = 7 * 24 * 3600
_NOTHING = "a TRACE or log, --pids, --endpoint or --model"
_DIAGNOSIS = "a TRACE, or --model without --ladder and --write-trace"
_MEASURED = "a TRACE, or --model without --write-trace"
_BESIDE: Mapping[str, tuple[str, ...]] = {
    "calls_path": ("endpoint",),
    **dict.fromkeys(("framing", "timeout"), ("calls_path",)),
    **dict.fromkeys(("seq", "write_trace", "ladder"), ("model",)),
    "full": ("ladder",),
    **dict.fromkeys(("rounds", "budget", "lang", "html"), ("measured",)),
    **dict.fromkeys(("recorded_over", "backends", "sample"), ("diagnosis",)),
    **dict.fromkeys(("against", "fail_if"), ("trace",)),
    **dict.fromkeys(("dtype", "attention"), ("model",)),
}
"""Option → what it needs one of; without, it would do nothing."""
_APART = (("trace", "model"), ("ladder", "write_trace"), ("ladder", "dtype"), ("ladder", "attention"))
"""Options of which one makes the other meaningless."""


@click.command(
    "diagnose",
    help="""Say which transport is really in use, what it costs here, and what would help.

    With a TRACE (a trace folder or a zmq_performance.log): where its calls' time went, and what would help, each change
    replayed beside the calls as recorded. With --pids: what joins these processes, as the kernel knows it. With
    --endpoint: whether it exists, and who listens; with --calls, also your own requests, one after another. With
    --model: the traffic of a model whose layers run on a server, from its config.json alone.

    Exit codes: 0 done; 1 a call failed, an endpoint is not healthy, what joins the processes is not what the log says,
    or --fail-if holds; 2 bad input; 3 what joins the processes, how an endpoint is, or what --fail-if asks for cannot
    be told.""",
)
@click.argument("trace", metavar="[TRACE]", required=False, shell_complete=a_path("file"))
@click.option("--pids", metavar="A[,B]", help="Processes: what joins them, or one and any other.")
@click.option(
    "--endpoint", metavar="URL", help="Endpoint to look at: ipc:///path, tcp://host:port, a path, shm://NAME."
)
@click.option(
    "--calls", "calls_path", metavar="FILE", help="With --endpoint: a Python file with `calls = [(name, bytes)]`."
)
@one_word("--framing", ("req", "dealer"), "Of these calls.")
@duration("--timeout", "5s", "Longest wait for the reply to each of them.")
@click.option("--model", metavar="NAME", help="Preset such as llama-3.2-1b, or a config.json.")
@whole("--seq", 1024, "With --model: tokens.")
@one_word("--dtype", DTYPES, "With --model: of the tensors.")
@one_word("--attention", ("server", "client"), "With --model: where the products of attention are computed.")
@click.option("--write-trace", metavar="FOLDER", help="With --model: write these calls as a trace, and do no more.")
@click.option("--ladder", is_flag=True, help="With --model: measure a roadmap, stage by stage.")
@click.option("--full", is_flag=True, help="With --ladder: send all bytes of all layers, however long it takes.")
@click.option(
    "--recorded-over",
    default="",
    show_default="as the trace says",
    shell_complete=one_of(backend_names),
    metavar="NAME",
    help="Backend that is most like the recorded transport.",
)
@several("--backends", "zmq,pipe,shm", "Other transports to try.")
@whole("--rounds", 3, "Replays of each change.")
@duration(
    "--budget", "60s", "Bounds the replays: none begins that would end later. Floors and costs take some seconds more."
)
@click.option("--sample", metavar="FILE", help="Bytes as they travel: what would compression bring?")
@click.option("--against", metavar="TRACE", help="The same calls before: compare where the time went.")
@click.option("--fail-if", metavar="PART>PERCENT", help="Exit with 1 if a part of the time is larger, as in server>50.")
@one_word("--lang", ("en", "zh"), "Language of the diagnosis.")
@click.option(
    "--html",
    metavar="FILE",
    help="With a TRACE or --model: write a page with plots instead, to this file, created or replaced as a whole.",
)
@format_option(*FORMATS)
@progress_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Do what the options ask for, in this order: processes, endpoint and requests, a model, recorded calls."""
    _require_sense(context, given)
    if given["html"]:
        require_page(given["html"])
    job = _Job(given)
    printed = _Printed(given["form"])
    code = 0
    if given["pids"]:
        code = _links(job, printed) or code
    if given["endpoint"]:
        code = _health(job, printed) or code
    if given["calls_path"]:
        code = _calls(job, printed) or code
    if given["write_trace"]:
        _write_trace(job)
    elif given["ladder"]:
        _ladder(job, printed)
    elif job.traffic is not None or job.model is not None:
        code = _diagnosis(job, printed) or code
    printed.end()
    return code


def _require_sense(context: click.Context, given: dict[str, Any]) -> None:
    """Refuse options that would do nothing."""
    names = {param.name or "": "TRACE" if param.name == "trace" else param.opts[0] for param in context.command.params}
    names |= {"diagnosis": _DIAGNOSIS, "measured": _MEASURED}
    is_given = {name: context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in given}
    is_given["measured"] = bool((given["trace"] or given["model"]) and not given["write_trace"])
    is_given["diagnosis"] = is_given["measured"] and not given["ladder"]
    for name, others in _BESIDE.items():
        if is_given[name] and not any(is_given[other] for other in others):
            needed = " or ".join(names[other] for other in others)
            raise click.UsageError(f"{names[name]} does nothing without {needed}", context)
    for name, other in _APART:
        if is_given[name] and is_given[other]:
            raise click.UsageError(f"{names[other]} does nothing beside {names[name]}", context)
    for name, value in given.items():
        if value == "" and is_given[name]:
            raise ConfigError(names[name], value, "a value that is not empty")
    if not (given["trace"] or given["pids"] or given["endpoint"] or given["model"]):
        raise click.UsageError(f"nothing to look at: name {_NOTHING}", context)
    _require_format(given)


def _require_format(given: dict[str, Any]) -> None:
    form, allowed = given["form"], tuple[str, ...](FORMATS)
    looks = [f"--{name}" for name in ("pids", "endpoint") if given[name]]
    silent = [option for option, key in (("--write-trace", "write_trace"), ("--html", "html")) if given[key]]
    if silent:
        allowed, looks = FORMATS[:1], silent
    elif looks:
        allowed = ("text", "json")
    elif given["against"]:
        allowed, looks = ("text", "markdown", "json"), ["--against"]
    if form not in allowed:
        raise ConfigError("--format", form, f"{' or '.join(allowed)} beside {' and '.join(looks)}")


class _Job:
    """What is asked for, read and checked before anything is measured or printed.

    Raises:
        ConfigError, StoreError: an option is not valid, or a file cannot be read.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        from ipcbench.diagnose.endpoints import parse_endpoint
        from ipcbench.models.shapes import MOST_TOKENS
        from ipcbench.spec import require_range
        from ipcbench.util.units import parse_duration_s

        self.given = given
        self.language = cast("Language", given["lang"])
        self.pids = _numbers(given["pids"]) if given["pids"] else ()
        if given["endpoint"]:
            parse_endpoint(given["endpoint"], "--endpoint")
        self.calls = _requests(given["calls_path"]) if given["calls_path"] else []
        self.timeout_s = parse_duration_s(given["timeout"], "--timeout")
        self.budget_s = parse_duration_s(given["budget"], "--budget")
        if not 1 <= self.budget_s <= _MOST_BUDGET_S:
            raise ConfigError("--budget", given["budget"], "1s to 7 days")
        require_range("--rounds", given["rounds"], 1, 10_000)
        require_range("--seq", given["seq"], 1, MOST_TOKENS)
        self.model = _model(given["model"]) if given["model"] else None
        self.traffic = _traffic(given["trace"]) if given["trace"] else None
        self.before = _traffic(given["against"]) if given["against"] else None
        for name, traffic in (("--fail-if", self.traffic if given["fail_if"] else None),
                              ("--against", self.traffic if given["against"] else None),
                              ("--against", self.before)):  # fmt: skip
            if traffic is not None and not traffic.is_timed:
                raise ConfigError(name, traffic.source, "calls with times; nobody made those of this trace")
        self.gate = _gate(given["fail_if"]) if given["fail_if"] else None
        self.say: Callable[[str], None] = tell if given["progress"] and not given["quiet"] else lambda _: None

    def request(self, source: str) -> Request:
        """Return what is to be replayed."""
        from ipcbench.replay.run import Request

        names = tuple(dict.fromkeys(name.strip() for name in self.given["backends"].split(",") if name.strip()))
        return Request(names, self.given["rounds"], self.budget_s, source=self.given["recorded_over"] or source)


def _numbers(pids: str) -> tuple[int, ...]:
    from ipcbench.diagnose.endpoints.process import require_running

    parts = [part.strip() for part in pids.split(",")]
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and len(part) < _MOST_DIGITS for part in parts):
        raise ConfigError("--pids", pids, "the number of a process, or two with a comma between them")
    for part in parts:
        require_running("--pids", int(part))
    return tuple(map(int, parts))


def _requests(path: str) -> list[tuple[str, UserRequest]]:
    from ipcbench.cli.output import warn_of_code
    from ipcbench.diagnose.stepwise import load_calls

    warn_of_code(path)
    return load_calls(Path(path))


def _model(name: str) -> Model:
    from ipcbench.models import read_model

    return read_model(name)


def _traffic(trace: str) -> Traffic:
    from ipcbench.replay.clients import read_traffic

    (path,) = trace_paths(trace)
    return read_traffic(path, last_run=True)


def _gate(fail_if: str) -> tuple[str, float]:
    """Return the part of the time that must not be larger, and the percentage."""
    from ipcbench.diagnose.attribution import PARTS
    from ipcbench.diagnose.words import word

    shown = {word(part, "en"): part for part in PARTS}
    name, _, limit = fail_if.partition(">")
    name = shown.get(name.strip(), name.strip())
    try:
        percent = float(limit.strip().rstrip("%"))
    except ValueError:
        percent = -1.0
    if name not in PARTS or not 0 <= percent <= 100:
        raise ConfigError("--fail-if", fail_if, f"PART>PERCENT, as in server>50, where PART is {', '.join(shown)}")
    return name, percent


@dataclass(slots=True)
class _Printed:
    """What goes to stdout: text at once, JSON documents at the end, several as a list."""

    form: str
    documents: list[str] = field(default_factory=list)

    def add(self, kind: str, fields: dict[str, Any], text: str) -> None:
        """Print the text, or keep the document."""
        from ipcbench.render.document import document

        if self.form == "json":
            self.documents.append(document(kind, fields))
        else:
            click.echo(text)

    def write(self, text: str) -> None:
        """Print what is in the right format already."""
        if self.form == "json":
            self.documents.append(text)
        else:
            sys.stdout.write(text)

    def end(self) -> None:
        """Print the documents."""
        if self.documents:
            sys.stdout.write(one_or_list(self.documents))
        sys.stdout.flush()  # report a closed pipe here, not after the exit


def _links(job: _Job, printed: _Printed) -> int:
    """Print what joins the processes, and whether the word of a log fits; return the exit code."""
    from ipcbench.diagnose.endpoints import agrees, links
    from ipcbench.diagnose.looks import links_fields

    found = links(job.pids[0], job.pids[1] if len(job.pids) > 1 else None)
    word = next(iter(job.traffic.transports), None) if job.traffic else None
    fits = None if word is None else agrees(found, word)
    verdict = found.verdict.split("\n") if found.second is None else [found.verdict]  # a line for each pair
    notes = (note for note in found.notes if note not in found.verdict)
    lines = [*verdict, *notes, *([fits.text] if fits else [])]
    printed.add("links", links_fields(found, word, fits), "\n".join(map(printable, lines)))
    if fits is not None and fits.answer == "contradicts":
        return EXIT_FAILED
    return 0 if found.state == "in use" else EXIT_INCONCLUSIVE


def _health(job: _Job, printed: _Printed) -> int:
    """Print how an endpoint is; return the exit code."""
    from ipcbench.diagnose.endpoints import health
    from ipcbench.diagnose.looks import health_fields

    found = health(job.given["endpoint"], next(iter(job.pids), None))
    lines = [f"{each.level}: {each.text}{f': {each.remedy}' if each.remedy else ''}" for each in found.findings]
    printed.add("endpoint", health_fields(found), "\n".join(map(printable, lines)))
    return {True: 0, False: EXIT_FAILED, None: EXIT_INCONCLUSIVE}[found.is_healthy]


def _calls(job: _Job, printed: _Printed) -> int:
    """Send the user's requests up to the first that fails; return the exit code."""
    from ipcbench.diagnose.looks import requests_fields, step_text
    from ipcbench.diagnose.stepwise import check_calls

    given, framing, steps = job.given, cast("Framing", job.given["framing"]), []
    for step in check_calls(given["endpoint"], job.calls, framing, job.timeout_s):
        steps.append(step)
        if printed.form == "text":
            click.echo(step_text(step))
    if printed.form == "json":
        printed.add("requests", requests_fields(given["endpoint"], framing, job.timeout_s, len(job.calls), steps), "")
    return EXIT_FAILED if any(step.error is not None for step in steps) else 0


def _write_trace(job: _Job) -> None:
    """Write the calls of a model as a trace, and say what they are."""
    from ipcbench.diagnose.synth import split_calls, write_trace

    given = job.given
    assert job.model is not None  # noqa: S101 - `_require_sense` has seen to it
    write_trace(Path(given["write_trace"]), job.model, given["seq"], given["dtype"], given["attention"])
    calls = split_calls(job.model, given["seq"], given["dtype"], given["attention"])
    sent, received = sum(call[1] for call in calls) / 2**20, sum(call[2] for call in calls) / 2**20
    what = f"{len(calls):,} calls that send {sent:,.3f} MiB and receive {received:,.3f} MiB"
    tell(f"{what} are in {given['write_trace']}")


def _ladder(job: _Job, printed: _Printed) -> None:
    """Measure the ladder of a model, and print its table."""
    from ipcbench.diagnose.ladder import ladder_fields, ladder_table, measure_ladder
    from ipcbench.render.document import document
    from ipcbench.render.text import aligned, bullets, csv_text, markdown_table, paragraphs

    given = job.given
    assert job.model is not None  # noqa: S101 - `_require_sense` has seen to it
    result = measure_ladder(job.model, given["seq"], given["rounds"], job.budget_s, given["full"], job.say)
    if given["html"]:
        from ipcbench.diagnose.page.page import ladder_html

        write_page(ladder_html(result, _this_command(), job.language), given["html"])
        return
    table, form = ladder_table(result, job.language), printed.form
    if form == "json":
        text = document("ladder", ladder_fields(result))
    elif form == "csv":
        heads = [" ".join(column.head).strip() for column in table.columns]
        text = csv_text([dict(zip(heads, row, strict=True)) for row in table.rows], heads)
    elif form == "markdown":
        text = f"# {table.title}\n\n{bullets(table.remarks)}\n\n{markdown_table(table)}\n"
    else:
        text = "\n".join([table.title, *paragraphs(table.remarks), "", *aligned(table)]) + "\n"
    printed.write(text)


def _planned(job: _Job) -> Traffic:
    """Return the traffic of a model that nobody has run, with the model's words as its source."""
    from tempfile import TemporaryDirectory

    from ipcbench.diagnose.synth import describe, write_trace
    from ipcbench.replay.clients import read_traffic
    from ipcbench.spec import NAME_PREFIX

    assert job.model is not None  # noqa: S101 - a TRACE or a model is there
    what = job.model, job.given["seq"], job.given["dtype"], job.given["attention"]
    with TemporaryDirectory(prefix=NAME_PREFIX) as folder:
        write_trace(Path(folder), *what)
        return replace(read_traffic(Path(folder)), source=describe(*what))


def _diagnosis(job: _Job, printed: _Printed) -> int:
    """Diagnose recorded or planned calls, and print the result; return the exit code."""
    from ipcbench.diagnose import render
    from ipcbench.diagnose.diagnosis import diagnose, source_of

    traffic = job.traffic or _planned(job)
    sample = None if job.given["sample"] is None else Path(job.given["sample"])
    made = diagnose(traffic, job.request(source_of(traffic)), sample, job.say)
    if job.given["html"]:
        from ipcbench.diagnose.page.page import diagnosis_html

        write_page(diagnosis_html(made, _this_command(), job.language, job.before), job.given["html"])
    else:
        printed.write(render.FORMS[printed.form](made, job.language, job.before))
    return 0 if job.gate is None else _judged(made, *job.gate)


def _this_command() -> str:
    return shell_command(*command_line(click.get_current_context().obj))


def _judged(made: Diagnosis, part: str, percent: float) -> int:
    """Return the exit code: 1 if the part of the time is larger than the gate allows, 3 if that is not known."""
    from ipcbench.diagnose.words import word
    from ipcbench.util.units import format_significant as shown

    least, most = _bounds(made.attributions[0], part, made)
    name = word(part, "en")
    if least > percent:
        tell(f"ipcbench: {name} takes {shown(least)} % of the time, more than {percent:g} %")
        return EXIT_FAILED
    if most > percent:
        tell(
            f"ipcbench: {name} takes {shown(least)} to {shown(most)} % of the time: whether that is more than "
            f"{percent:g} % is not known; record the server, too"
        )
        return EXIT_INCONCLUSIVE
    return 0


def _bounds(every: Attribution, part: str, made: Diagnosis) -> tuple[float, float]:
    """Return the least and the most that a part of the time is, %: what is unknown may belong to it."""
    from ipcbench.diagnose.attribution import AWAY, attribute
    from ipcbench.diagnose.what_if import changed

    least = 100 * every.share(part)
    if part in {"server", "queue", "excess"} and not made.traffic.server_known:
        return least, 100 * every.share(*AWAY)  # no floor measured now proves how little the server did then
    if part in {"fixed", "bytes"}:
        floor = next((each.table for each in made.floors if each.backend == made.source), None)
        working = changed(made.traffic, lambda each: replace(each, server_ns=each.server_most_ns))
        most = least if floor else least + 100 * every.share("unknown")
        return 100 * attribute(working, floor)[0].share(part), most  # at least, if the server worked as long as it can
    return least, least
