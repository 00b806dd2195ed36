"""The JSON of every command is as docs/schemas and docs/json.md say: real output, every field, nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import msgspec
import pytest
from jsonschema import Draft202012Validator

from ipcbench import backend, registry, selftest, spec
from ipcbench.analysis.compare import rules, run_cells
from ipcbench.analysis.recommend import answer, evidence, question
from ipcbench.analysis.summary import cells, curves
from ipcbench.cli import main
from ipcbench.diagnose import stepwise, synth
from ipcbench.diagnose.endpoints import link, verdict
from ipcbench.diagnose.endpoints.health import Level
from ipcbench.diagnose.ladder import measure
from ipcbench.profile.records import Agreement, Memory, Setting, write_profile
from ipcbench.render.document import VERSIONS
from ipcbench.results.model import TrialResult
from ipcbench.spec import MODES, NAME_PREFIX, SweepSpec, Variant
from ipcbench.stats import decisions
from ipcbench.testing import conformance
from ipcbench.trace.compare import diff
from ipcbench.trace.format import ENDPOINT_MARK, HISTOGRAMS_SUFFIX
from ipcbench.trace.record.histograms import HistogramsFile, MethodHistograms
from ipcbench.trace.record.planned import write_planned
from ipcbench.trace.schema import EXCHANGE, RPC
from tests.diagnose.pairs import program, python
from tests.end_to_end.shell import ROOT
from tests.profile.built import built
from tests.profile.built import without_times as planned_calls
from tests.schemas import FOLDER, Schema, fields, part_fields, schema_of
from tests.trace.logs import V1, V3, head, open_calls, row, rows, tq_call, v1_row
from tests.trace.made import UNIX_NS, Made, both_sides
from tests.unit.builders import CELLS, CONTRARY, MACHINE, Cell, conditions, make_run
from tests.unit.pattern_runs import make_pattern_run, pattern_sweep, short

REFERENCE = shlex.quote(str(ROOT / "results" / "reference"))
SERVER = f"ipc://@{NAME_PREFIX}documents-{os.getpid()}"
"""Endpoint of a server that answers while the commands run."""
SERVER_CODE = f"""
import threading, zmq
server = zmq.Context().socket(zmq.REP)
server.bind({SERVER!r})
def serve():
    while True:
        server.send(server.recv())
threading.Thread(target=serve, daemon=True).start()
"""
CONFIG = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 50}  # fmt: skip
PROFILES = ("measured", "alone", "pipeline", "doubtful", "one", "calls")
COMMANDS = {
    "tables": [
        f"analyze {REFERENCE} --no-report --format json",
        "analyze whole one failed variants unknown finished --no-report --format json",
        "analyze queue queue_once queue_poor fan_in rpc rpc_once --no-report --format json",
    ],
    "comparison": [
        "compare whole whole --gate 5% --format json",
        "compare whole one --metrics latency-p99,decode-p50 --format json",
        "compare whole failed --gate 5% --format json",
        "compare variants --format json",
    ],
    "profile analysis": [f"profile report profiles/{name} --format json" for name in PROFILES],
    "recommendation": [
        f"recommend {REFERENCE} --size 5105 --format json",
        f"recommend {REFERENCE} --size 50k --rate 1k --optimise throughput --format json",
        f"recommend {REFERENCE} --size 5 --readers 3 --format json",
        "recommend whole --size 521 --needs persistent --format json",
        "recommend one --size 521 --optimise cpu --format json",
        "recommend failed --size 521 --format json",
        "recommend contrary --size 521 --format json",
        "recommend crossing --size 521 --format json",
        "recommend paced --size 521 --format json",
        "recommend unknown --size 521 --optimise throughput --format json",
        "recommend whole --size 521 --readers 7 --format json",
    ],
    "pattern recommendation": [
        "recommend queue --size 1KiB --format json",
        "recommend queue --size 1KiB --needs persistent --format json",
        "recommend queue --size 1KiB --rate 1M --format json",
        "recommend queue_once --size 1KiB --format json",
        "recommend queue_poor --size 1KiB --format json",
        "recommend fan_in --size 1KiB --writers 2 --format json",
    ],
    "conformance": [
        "check null --laws C1,C13 --quick --format json",
        "check json_broken:Broken --laws C1 --quick --format json",
    ],
    "doctor": ["doctor --format json"],
    "leftovers": ["doctor --leftovers --format json"],
    "backends": ["list --format json", "list shm --format json"],
    "self-test": [f"selftest --pairs 1 --rounds {rounds} --slowdowns 10 --quiet --format json" for rounds in (1, 3)],
    "trace report": [
        "trace report trace --format json",
        "trace report counted --format json",
        "trace report trace --lang zh --rules seed --format json",
        "trace report v1.log claims.log tq.log v3.log sockets --format json",
        "trace report planned --format json",
    ],
    "trace path": [
        "trace report paths.log --trace-id shared --format json",
        "trace report paths.log --trace-id timeless --format json",
        "trace report trace --trace-id 0123456789abcdeffedcba9876543210 --format json",
        f"trace report planned --trace-id {crc32(b'model'):016x}{3:016x} --format json",
    ],
    "trace diff": ["trace diff longer longer --format json", "trace diff trace v1.log --format json"],
    "replay": [
        "replay trace --backends shm,pipe --calls 4 --rounds 3 --recorded-over shm --quiet --format json",
        "replay v1.log --backends pipe --calls 4 --rounds 1 --quiet --format json",
        "replay planned --backends pipe --rounds 1 --quiet --format json",
    ],
    "diagnosis": [
        "diagnose trace --backends shm,pipe --rounds 3 --sample v1.log --against longer --quiet --format json",
        "diagnose v1.log --backends pipe --rounds 1 --quiet --format json",
        "diagnose planned --backends pipe --rounds 1 --quiet --format json",
    ],
    "ladder": [
        f"diagnose --model config.json --ladder --seq 4 --rounds {rounds} --budget 9min --quiet --format json"
        for rounds in (1, 3)
    ],
    "links": [
        f"diagnose --pids {os.getpid()} --format json",
        f"diagnose v1.log --pids {os.getpid()},{os.getpid()} --rounds 1 --quiet --format json",
    ],
    "endpoint": [
        f"diagnose --endpoint {SERVER} --format json",
        "diagnose --endpoint tcp://192.0.2.1:5555 --format json",  # RFC 5737: of no host
    ],
    "requests": [f"diagnose --endpoint {SERVER} --calls calls.py --format json"],
}
"""Kind → command lines whose output is such a document, or a list with it."""
FILES = {"profile": "profile.json", "profile communication": "comm_analysis.json"}
"""Kind → name of the file that holds such a document in each folder of a profile."""
WORDS = {
    ("backends", "capabilities.when_full"): backend.WhenFull,
    ("backends", "capabilities.launcher"): backend.Launcher,
    ("comparison", "changes[].metric"): run_cells.ComparedMetric,
    ("comparison", "changes[].verdict"): rules.Verdict,
    ("comparison", "changes[].gate"): rules.GateResult,
    ("comparison", "outcome"): rules.GateResult,
    ("comparison", "changes[].cell.mode"): spec.Mode,
    ("conformance", "laws[].outcome"): conformance.Outcome,
    ("endpoint", "findings[].level"): Level,
    ("ladder", "stages[].dtype"): synth.Dtype,
    ("ladder", "stages[].verdict"): decisions.Verdict,
    ("links", "links[].kind"): link.Kind,
    ("links", "links[].role"): link.Role,
    ("links", "log_answer"): verdict.Answer,
    ("links", "state"): verdict.State,
    ("recommendation", "outcome"): answer.Outcome,
    ("recommendation", "axis"): curves.Measure,
    ("recommendation", "sureness"): evidence.Sureness,
    ("recommendation", "question.optimise"): question.Goal,
    ("replay", "backends[].verdict"): decisions.Verdict,
    ("requests", "framing"): stepwise.Framing,
    ("self-test", "counts[].metric"): cells.Metric,
    ("tables", "cell.ranked_by"): cells.Metric,
    ("tables", "cell.status"): cells.CellStatus,
    ("tables", "setting.delivery"): spec.Delivery,
    ("tables", "setting.wait"): spec.WaitStrategy,
    ("tables", "setting.touch"): spec.Touch,
    ("trace diff", "methods[].changes[].verdict"): diff.Verdict,
}
"""(kind, field) → the type that has its words."""
RARELY_NULL = {
    "diagnosis": ("remedies[].backend", "remedies[].rounds_count"),
    "doctor": ("facts.", "machine."),
    "ladder": ("stages[].time_s", "stages[].touched_s"),
    "pattern recommendation": ("pattern_cell.messages_per_s",),
    "trace report": ("split.transport_ns",),
}
"""Kind → fields that are null on other systems, in a trace with no reply to any joined call, or of one
whose segments all have a method with enough records, of a change that follows from a recording alone, or of a stage
that cannot run."""
NOT_THERE = {"pattern recommendation": ("pattern_cell.calls",)}
"""Kind → fields of a part that it shares with another kind and does not fill: nothing is recommended for rpc."""


def made_runs(folder: Path) -> None:
    """Store a whole run, one of a single round, a failed one, one with variants, and one of which little is known."""
    many = (1.0, 1.01, 0.99, 1.005, 0.995)
    waiting = {key: Cell(cell.latency_ns, cell.rate_per_s, factors=many) for key, cell in CELLS.items()}
    waiting[("lmdb", 10)] = Cell(factors=(0.0, 1.0, 0.0))
    make_run(folder / "whole", waiting, modes=MODES, skipped={"mpi": "no mpi4py"}, rounds=5)
    make_run(folder / "one", {key: Cell(factors=(1.0,)) for key in CELLS}, modes=MODES, rounds=1)
    make_run(folder / "failed", {("shm", 10): Cell(factors=(0.0,))}, modes=MODES)
    make_run(folder / "contrary", {(name, 10): cell for name, cell in CONTRARY.items()})
    variants = tuple(Variant(name, f"/opt/{name}/python") for name in ("base", "head"))
    versions = {variant.name: {"python": "3.11"} for variant in variants}
    plain = {"backends": ("shm",), "variants": variants, "variant_versions": versions}
    make_run(folder / "variants", {("shm@base", 10): Cell(), ("shm@head", 10): Cell()}, **plain)
    facts = dict.fromkeys(("cpu_model", "logical_cores", "physical_cores", "smt", "numa_nodes", "governor", "turbo",
                           "virtual", "shm_bytes", "shm_free_bytes", "huge_pages"))  # fmt: skip
    blind = Cell(change=lambda trial: replace(trial, conditions=conditions(None)))
    make_run(folder / "unknown", {("shm", 10): blind}, machine={**MACHINE, **facts}, floor=None, modes=("saturate",))
    make_run(folder / "paced", {("shm", 10): Cell()}, modes=("paced",))
    ways = {("shm", 10): 1.0, ("zmq", 10): 3.0, ("shm", 1000): 30.0, ("zmq", 1000): 9.0}
    make_run(folder / "crossing", {key: Cell(10_000.0 * way, spread=0.01, factors=many) for key, way in ways.items()})

    rates = {"shm": (9000.0, 9100.0, 9200.0), "zmq": (900.0, 910.0, 920.0), "pipe": (0.0, 0.0, 0.0)}
    make_pattern_run(folder / "queue", rates, skipped={"mpi": "backend 'mpi' does not offer pattern queue"})
    make_pattern_run(folder / "queue_once", {"shm": (9000.0,)})
    make_pattern_run(folder / "queue_poor", {"shm": (9000.0, 9100.0, 9200.0)}, change=without_times)
    rpc = pattern_sweep(name="rpc", pattern="rpc", p99_limit_s=0.005)
    make_pattern_run(folder / "rpc", rates, rpc)
    make_pattern_run(folder / "rpc_once", {"shm": (9000.0,)}, replace(rpc, p99_limit_s=1e-6), change=short)
    make_pattern_run(folder / "fan_in", rates, pattern_sweep(name="fan-in", pattern="fan_in"))


def made_profiles(folder: Path) -> None:
    """Store profiles: of two ranks; of one, with little memory; a pipeline; with clocks that nobody compared, a step
    that was held up, and a GPU; of one of two ranks; and calls alone.
    """
    measured = built(repetitions=4, layers=3, slow=(1, 2, 5_000_000))
    alone = replace(built(ranks=1, repetitions=2), machine={"memory_bytes": 2**20})
    sent = [msgspec.structs.replace(call, op=("send", "recv")[call.rank]) for call in measured.calls]
    setting = replace(measured.setting or Setting(model=""), parallel="pp2")
    pipeline = replace(measured, setting=setting, calls=tuple(sent), agreement=Agreement(None))
    on_gpu = Memory(0, 1, None, None, 1, {}, 1, 1, 1)
    held, *others = measured.steps
    steps = (msgspec.structs.replace(held, wall_ns=held.wall_ns + 10**10), *others)
    doubtful = replace(measured, steps=steps, clock_error_ns=2**62, memory=(on_gpu,), verified_on="a GPU, torch 2.13.0")
    one = replace(measured, steps=tuple(step for step in measured.steps if not step.rank), remarks=("One rank.",))
    calls = replace(planned_calls(measured), setting=None)
    for name, made in zip(PROFILES, (measured, alone, pipeline, doubtful, one, calls), strict=True):
        write_profile(folder / name, made)


def without_times(trial: TrialResult) -> TrialResult:
    """Return a trial in which nothing came in time, and nobody counted what was given out again."""
    recovery = trial.recovery and replace(trial.recovery, redelivered_count=None)
    return replace(trial, windows=tuple(replace(each, wait=None) for each in trial.windows), recovery=recovery)


def made_traces(folder: Path) -> None:
    """Store a trace with both sides, a longer one, one of calls that nobody made, a log, one whose summary is wrong,
    and one with lost calls.
    """
    write_planned(folder / "planned", "model", [("Matmul", 100, 200)])
    both_sides(folder / "trace", 30)
    both_sides(folder / "longer", 1200)
    counted_trace(folder / "counted")
    log = head(V1) + "".join(map(v1_row, range(1, 9)))
    (folder / "v1.log").write_text(log, encoding="utf-8")
    claims = log + "Total RPC Calls: 77\n" + row(9, "Odd", 1, 2, 6, 1, 3, 1024, 2048, 300) + rows(range(10, 12), "Odd")
    (folder / "claims.log").write_text(claims + "damaged\n", encoding="utf-8")
    (folder / "tq.log").write_text("".join(open_calls()), encoding="utf-8")
    column = head(V3) + rows(range(1, 60), "M", 0.01, 0.01, 8.9, 0.01, 8.9, 0.2, 8.93, 0.1, 0.1)
    (folder / "v3.log").write_text(column, encoding="utf-8")
    shared = [line for func in ("load", "train") for line in tq_call(5.0, func=func, trace_id="shared")]
    timeless = [line.rpartition(" | timestamp")[0] + "\n" for line in tq_call(9.0, trace_id="timeless")]
    (folder / "paths.log").write_text("".join([*shared, *timeless]), encoding="utf-8")
    sockets = Made(folder / "sockets", "client")
    sockets.name(f"{ENDPOINT_MARK}REQ tcp://127.0.0.1:1: SNDHWM=1000")
    sockets.call("REQ", [10**9, 2 * 10**9, 3 * 10**9], EXCHANGE)
    sockets.segment.close()


def counted_trace(folder: Path) -> None:
    """Store a trace of calls that were counted and not timed; of one method, one was timed."""
    folder.mkdir()
    facts = {"host": "h", "boot": "b", "pid": 1, "tid": 1, "anchor_ns": [0, UNIX_NS]}
    for number, method in enumerate(("Ping", "Pong")):
        file = HistogramsFile(folder / f"h-h-b-1-1-{number}{HISTOGRAMS_SUFFIX}")
        block = file.new_block(
            {**facts, "service": method, "method": method, "schema": RPC.text, "role": RPC.role, "peer": ""}
        )
        histograms = MethodHistograms(block)
        histograms.add_untimed(7)
        if method == "Pong":
            histograms.add(10, [20, 30, 40], 50, 1, 1, False)
        histograms.close()


def measured_by_selftest(sweep: SweepSpec, folder: Path, **_: Any) -> Path:
    """Stand in for the ten minutes of measuring: return a run of that sweep with made-up figures."""
    rounds = (1.0, 1.01, 0.99)[: sweep.rounds]
    some = {(name, size): Cell(factors=rounds) for name in sweep.backends for size in sweep.sizes[:2]}
    return make_run(folder / "run", some, modes=sweep.modes, payload="bytes", codec="raw", rounds=sweep.rounds).path


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> Iterator[Path]:
    """A folder with runs, traces and a broken backend, in which the commands run; something is left by a killed run."""
    folder = tmp_path_factory.mktemp("documents")
    made_runs(folder)
    made_traces(folder)
    made_profiles(folder / "profiles")
    shutil.copytree(finished_run, folder / "finished")
    (folder / "json_broken.py").write_text(
        "from ipcbench.backends.null import Null\nfrom ipcbench.testing.faults import faulty\n"
        'Broken = faulty("C1", Null)\n',
        encoding="utf-8",
    )
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    calls = "def broken():\n    raise OSError('no')\ncalls = [('good', b'x'), ('bad', broken)]\n"
    (folder / "calls.py").write_text(calls, encoding="utf-8")
    temporary = tmp_path_factory.mktemp("t")
    (temporary / f"{NAME_PREFIX}0123-run").mkdir()
    (temporary / f"{NAME_PREFIX}0123-run" / "run.lock").touch()
    with program(*python(SERVER_CODE)), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(selftest, "run_sweep", measured_by_selftest)
        patch.setitem(registry._BUILT_IN, "gone", "no_such_module:Thing")
        patch.setitem(sys.modules, "lz4", None)
        patch.setattr("ipcbench.profile.files.PLOTS", {})
        patch.setattr(measure, "STAGES", (measure.STAGES[0], measure.STAGES[4]))  # each takes a second a round
        yield folder


@pytest.fixture(scope="module")
def documents(newcomer: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (kind, command, document) of everything that the commands write."""
    found = []
    for kind, commands in COMMANDS.items():
        for command in commands:
            content = json.loads(output_of(command))
            each = content if isinstance(content, list) else [content]
            kinds = [document["format"].removeprefix("ipcbench ") for document in each]
            assert kind in kinds, command
            found += [(of, command, document) for of, document in zip(kinds, each, strict=True)]
    for kind, name in FILES.items():
        paths = [newcomer / "profiles" / profile / name for profile in PROFILES]
        found += [(kind, str(path), json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    return found


def output_of(command: str) -> str:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(shlex.split(command))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert code in {0, 1, 3}, f"{command}: {said.getvalue()}"
    return stream.getvalue()


def errors(kind: str, document: Any) -> list[str]:
    found = Draft202012Validator(schema_of(kind)).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in found]


def test_every_document_is_as_its_schema_says(documents: list[tuple[str, str, dict[str, Any]]]) -> None:
    assert {kind for kind, _, _ in documents} == set(VERSIONS)
    wrong = {command: found for kind, command, document in documents if (found := errors(kind, document))}
    assert wrong == {}


@pytest.mark.parametrize("kind", VERSIONS)
def test_every_field_of_a_schema_is_in_a_real_document_and_null_where_it_may_be(
    kind: str, documents: list[tuple[str, str, dict[str, Any]]]
) -> None:
    schema = schema_of(kind)
    absent = NOT_THERE.get(kind, ())
    every = {**dict(fields(schema)), **part_fields(schema)}
    described = {path: part for path, part in every.items() if not path.startswith(absent)}
    met, nulls = set(), set()
    for path, _, value in (node for each, _, found in documents if each == kind for node in nodes(schema, found)):
        (nulls if value is None else met).add(path)
    assert described.keys() - met - nulls == set()
    assert {path for path, part in described.items() if "properties" in part} - met == set()
    nullable = {path for path, part in described.items() if _may_be_null(part)}
    rare = RARELY_NULL.get(kind, ())
    assert {path for path in nullable - nulls if not path.startswith(rare)} == set()


def _may_be_null(part: Schema) -> bool:
    return "null" in part.get("type", ()) or {"type": "null"} in part.get("anyOf", ())


def _is_fixed(part: Schema) -> bool:
    return False in (part.get("additionalProperties"), part.get("unevaluatedProperties"))


Node = tuple[str, Schema, Any]


def nodes(root: Schema, value: Any) -> Iterator[Node]:
    """Yield (path, schema, value) of a document and of everything in it; paths are those of `tests.schemas`."""
    return _nodes(root, root, value, "")


def _nodes(root: Schema, schema: Schema, value: Any, path: str) -> Iterator[Node]:
    yield path, schema, value
    for each in (schema, *schema.get("anyOf", ())):
        if "$ref" in each and value:
            name = each["$ref"].rpartition("/")[2]
            yield from _nodes(root, root["$defs"][name], value, name)
    if isinstance(value, list):
        for item in value:
            yield from _nodes(root, schema.get("items", {}), item, f"{path}[]")
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            if key in known:
                yield from _nodes(root, known[key], item, f"{path}.{key}".lstrip("."))
            elif isinstance(rest, dict):
                yield from _nodes(root, rest, item, f"{path}.*")


@pytest.mark.parametrize("kind", VERSIONS)
def test_an_unknown_field_is_refused_in_every_object(
    kind: str, documents: list[tuple[str, str, dict[str, Any]]]
) -> None:
    schema = schema_of(kind)
    accepted = []
    for found in (json.loads(json.dumps(found)) for each, _, found in documents if each == kind):
        fixed = {path: value for path, part, value in nodes(schema, found) if _is_fixed(part) and value is not None}
        for path, value in fixed.items():
            value["surprise"] = 1
            accepted += [path] if not errors(kind, found) else []
            del value["surprise"]
        accepted += ["version"] if not errors(kind, {**found, "version": VERSIONS[kind] + 1}) else []
    assert accepted == []


def test_each_kind_has_a_schema_of_its_version() -> None:
    assert {path.stem.replace("-", " ") for path in FOLDER.iterdir()} == {kind.replace("-", " ") for kind in VERSIONS}
    for kind, version in VERSIONS.items():
        schema = schema_of(kind)
        Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        heads = {name: schema["properties"][name]["const"] for name in ("format", "version")}
        assert heads == {"format": f"ipcbench {kind}", "version": version}


def test_definitions_of_one_name_are_equal_and_every_field_is_described() -> None:
    known: dict[str, Schema] = {}
    for kind in VERSIONS:
        schema = schema_of(kind)
        definitions = schema.get("$defs", {})
        assert set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema))) == set(definitions), kind
        for name, part in definitions.items():
            assert known.setdefault(name, part) == part, name
        for one in (schema, *definitions.values()):
            for path, part in fields(one):
                assert part["description"].endswith("."), (kind, path)


@pytest.mark.parametrize(
    ("place", "words"), WORDS.items(), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_words_of_a_field_are_those_of_the_code(place: tuple[str, str], words: Any) -> None:
    kind, path = place
    schema = schema_of(kind)
    described = {**dict(fields(schema)), **part_fields(schema)}
    assert [word for word in described[path]["enum"] if word is not None] == list(get_args(WORDS[kind, path]))


def test_the_fields_of_a_sweep_are_those_of_the_code() -> None:
    described = schema_of("tables")["properties"]["run"]["properties"]["sweep"]["properties"]
    assert set(described) == set(asdict(SweepSpec()))
