"""Traffic from a model's config alone: exact bytes, equal to those of a live split, and a trace that claims no time."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipcbench import rpc, trace
from ipcbench.cli import main
from ipcbench.diagnose.synth import split_calls, write_trace
from ipcbench.errors import ConfigError, StoreError
from ipcbench.models import PRESETS, read_model
from ipcbench.replay.clients import read_traffic
from ipcbench.trace.report import render
from ipcbench.trace.report.gather import gather
from tests.diagnose.numpy_decoder import METHODS, Decoder, Here, There
from tests.models.test_config import stored
from tests.trace.made import record
from tests.trace.reading import records

pytestmark = pytest.mark.usefixtures("process_state")
LLAMA = PRESETS["llama-3.2-1b"]
SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4, "num_hidden_layers": 3},
    {"num_key_value_heads": 1, "head_dim": 24, "intermediate_size": 40},
    {"model_type": "qwen3", "head_dim": 8, "hidden_size": 48, "num_attention_heads": 6, "vocab_size": 33},
)


@pytest.mark.parametrize(
    ("dtype", "attention", "count", "sent_mib", "recv_mib"),
    [
        ("float32", "server", 98, "3,328.016", "3,656.489"),
        ("bfloat16", "server", 98, "1,664.012", "1,828.245"),
        ("float16", "server", 98, "1,664.012", "1,828.245"),
        ("float32", "client", 66, "896.016", "1,480.489"),
    ],
)
def test_llama_1b_has_the_known_bytes(dtype: Any, attention: Any, count: int, sent_mib: str, recv_mib: str) -> None:
    methods, *sizes = zip(*split_calls(LLAMA, 1024, dtype, attention), strict=True)
    assert len(methods) == count
    assert [f"{sum(column) / 2**20:,.3f}" for column in sizes] == [sent_mib, recv_mib]
    assert ("Matmul" in methods) == (attention == "server")


def test_ids_of_tokens_have_eight_bytes_in_each_type() -> None:
    assert [split_calls(LLAMA, 3, dtype)[0] for dtype in ("float32", "bfloat16")] == [
        ("Embedding", 24, 3 * 2048 * 4), ("Embedding", 24, 3 * 2048 * 2),
    ]  # fmt: skip


def test_wrong_choices_are_named() -> None:
    wrong: Any = "float8"
    with pytest.raises(ConfigError, match=r"^dtype: 'float8'"):
        split_calls(LLAMA, 3, wrong)
    with pytest.raises(ConfigError, match=r"^attention: 'float8'"):
        split_calls(LLAMA, 3, attention=wrong)
    with pytest.raises(ConfigError, match=r"^tokens: 0"):
        split_calls(LLAMA, 0)


@contextmanager
def server(name: str) -> Iterator[rpc.Client]:
    """Run the server of the decoder in a process of its own, and connect to it."""
    code = f"from tests.diagnose.numpy_decoder import serve\nserve({name!r})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2]) as running:
        try:
            with rpc.connect(name, timeout_s=30.0) as client:
                yield client
        finally:
            running.terminate()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_calls_are_those_of_a_live_split_in_every_size(channel_name: str, tmp_path: Path, dtype: Any) -> None:
    count = 0
    with server(channel_name.removeprefix("ipcb-")[-24:]) as client:
        for number, changes in enumerate(SIZES):
            folder = tmp_path / f"model{number}"
            folder.mkdir()
            model, path = read_model(stored(folder, **changes)), str(folder)
            for tokens in (1, 2, 7, 33):
                ids = np.random.default_rng(tokens).integers(0, model.vocab_size, tokens)
                here, there = Here(path, dtype), There(client, path, dtype)
                expected = Decoder(model, dtype, here, here).logits(ids)
                for attention in ("server", "client"):
                    recorded = folder / f"{tokens}-{attention}"
                    trace.start(recorded, service="client")
                    split = Decoder(model, dtype, there, there if attention == "server" else here)
                    assert np.array_equal(split.logits(ids), expected)
                    trace.stop()
                    calls = [call for call in records(recorded) if call.method in METHODS]
                    found = [(call.method, call.sent_bytes, call.recv_bytes) for call in calls]
                    assert found == [*split_calls(model, tokens, dtype, attention)], (changes, tokens, attention)
                    count += len(found)
    assert count == sum(
        4 * (2 + 6 * layers + 2 + 4 * layers) for layers in (changes.get("num_hidden_layers", 2) for changes in SIZES)
    )


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """The folder of a trace of 66 calls."""
    write_trace(tmp_path / "planned", LLAMA, 16, "bfloat16", "client")
    return tmp_path / "planned"


def test_the_trace_holds_the_calls_in_order(planned: Path) -> None:
    found = [(call.method, call.sent_bytes, call.recv_bytes) for call in records(planned)]
    assert found == [*split_calls(LLAMA, 16, "bfloat16", "client")]


def test_the_same_calls_give_the_same_file(planned: Path, tmp_path: Path) -> None:
    other = write_trace(tmp_path / "other", LLAMA, 16, "bfloat16", "client")
    assert other.read_bytes() == next(planned.iterdir()).read_bytes()


def test_a_folder_with_a_trace_is_refused(planned: Path, tmp_path: Path) -> None:
    record(tmp_path / "made", 3)
    for folder in (planned, tmp_path / "made"):
        before = sorted(folder.iterdir())
        with pytest.raises(StoreError, match="holds a trace already"):
            write_trace(folder, LLAMA, 16)
        assert sorted(folder.iterdir()) == before
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        write_trace(tmp_path / "file", LLAMA, 16)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("rules", ["default", "seed"])
def test_a_report_without_times_claims_none(planned: Path, language: Any, rules: str) -> None:
    report = render.make_report(gather([planned]), rules)
    assert report.findings == report.objections == []
    text = render.as_text(report, language)
    assert "0.000" not in text
    assert "%" not in text
    assert "≥" not in text
    calls = split_calls(LLAMA, 16, "bfloat16", "client")
    assert f"{sum(sent + recv for _, sent, recv in calls) / 2**20:,.1f}" in text
    assert "BatchLinear" in text


def test_sums_of_a_trace_without_times_are_exact_and_its_times_null(planned: Path) -> None:
    (segment,) = json.loads(render.as_json(render.make_report(gather([planned]))))["segments"]
    calls = split_calls(LLAMA, 16, "bfloat16", "client")
    assert (segment["calls_count"], segment["timed_count"], segment["stages"]) == (66, 0, [])
    for name in ("total_ns", "total_error_ns", "total_least_ns", "throughput_mib_per_s", "split"):
        assert segment[name] is None
    assert segment["moved_bytes"] == sum(sent + recv for _, sent, recv in calls)
    of_linear = next(method for method in segment["methods"] if method["method"] == "BatchLinear")
    assert of_linear["sent_bytes"] == sum(sent for method, sent, _ in calls if method == "BatchLinear")
    assert {key for key, value in of_linear.items() if key.endswith("_ns") and value is not None} == set()
    assert segment["slowest"] == []
    assert {call["total_ns"] for call in segment["largest"]} == {None}


def test_calls_that_were_made_keep_their_figures_beside_others(planned: Path, tmp_path: Path) -> None:
    """A time, a rate or a share that takes the planned calls for calls of no time."""
    record(tmp_path / "made", 40, methods=("BatchLinear",))
    alone = json.loads(render.as_json(render.make_report(gather([tmp_path / "made"]))))["segments"][0]
    both = json.loads(render.as_json(render.make_report(gather([planned, tmp_path / "made"]))))["segments"]
    assert both[1] == alone


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_exports_leave_times_empty(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "trace", "export", planned, "--to", "csv"))))
    assert len(rows) == 66
    assert {row[name] for row in rows for name in row if name.endswith(("(ms)", "(s)", "(MB/s)"))} == {""}
    assert {row["Sent(KB)"] for row in rows if row["Method"] == "LMHead"} == {"4.00"}
    (line, *_) = printed(capsys, "trace", "tail", planned, "--format", "jsonl").splitlines()
    assert (json.loads(line)["total_ns"], json.loads(line)["stages_ns"]) == (None, {})
    text = printed(capsys, "trace", "export", planned, "--to", "prometheus")
    labels = 'method="LMHead",service="llama-3.2-1b, 16 tokens, bfloat16, attention on the client",side="client"'
    assert f"ipcbench_call_duration_seconds_count{{{labels}}} 0" in text
    assert f"ipcbench_untimed_calls_total{{{labels}}} 1" in text
    assert f"ipcbench_sent_bytes_total{{{labels}}} 4096" in text


@pytest.mark.parametrize("form", ["perfetto", "chrome", "otlp", "zipkin"])
def test_formats_of_times_refuse_calls_without(planned: Path, tmp_path: Path, form: str, capsys: Any) -> None:
    assert main(["trace", "export", str(planned), "--to", form, "--out", str(tmp_path / "out")]) == 2
    assert "holds no call with a time on a clock" in capsys.readouterr().err


def test_parquet_has_null_for_times(planned: Path, tmp_path: Path) -> None:
    from pyarrow.parquet import read_table

    assert main(["trace", "export", str(planned), "--to", "parquet", "--out", str(tmp_path / "out")]) == 0
    table = read_table(tmp_path / "out").to_pydict()
    assert {*table["total_ns"], *table["wait_ns"], *table["begin"]} == {None}
    assert sum(table["recv_bytes"]) == sum(recv for _, _, recv in split_calls(LLAMA, 16, "bfloat16", "client"))


def test_pages_and_comparisons_are_made(planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "trace", "report", planned, "--html", tmp_path / "page.html")
    assert "BatchLinear" in (tmp_path / "page.html").read_text(encoding="utf-8")
    compared = json.loads(printed(capsys, "trace", "diff", planned, planned, "--format", "json"))
    verdicts = [change["verdict"] for method in compared["methods"] for change in method["changes"]]
    assert set(verdicts) == {"not comparable"}
    assert "calls = 64" in printed(capsys, "trace", "check", planned, "--fail-if", "BatchLinear.calls>64")
    assert "unknown" in printed(capsys, "trace", "check", planned, "--fail-if", "BatchLinear.MiB_per_s<1")


def test_traffic_without_times_has_the_messages_and_no_work(planned: Path) -> None:
    traffic = read_traffic(planned)
    (thread,) = traffic.threads
    found = zip(
        [traffic.methods[number] for number in thread.method], thread.sent_bytes, thread.recv_bytes, strict=True
    )
    assert [*found] == [*split_calls(LLAMA, 16, "bfloat16", "client")]
    assert not traffic.is_timed
    assert not traffic.server_known
    assert [column.sum() for column in (thread.gap_ns, thread.before_ns, thread.after_ns)] == [0, 0, 0]


def test_nobody_recorded_these_calls_over_a_transport(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(planned), "--recorded-over", "shm", "--quiet"]) == 2
    assert "--recorded-over: 'shm' is not valid" in capsys.readouterr().err
