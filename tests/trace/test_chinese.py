"""`--lang zh`: no English sentence is left in a report, only names and units."""

from __future__ import annotations

import gzip
import re
import string
from pathlib import Path

import pytest

from ipcbench import trace
from ipcbench.cli import main
from ipcbench.trace.page.words import _WORDS as PAGE_WORDS
from ipcbench.trace.readers.batch import LOSING
from ipcbench.trace.readers.logs.zmq_log import HEADLESS
from ipcbench.trace.report.phrases import COUNTS, SAYINGS
from ipcbench.trace.report.words import WORDS
from tests.trace.logs import V1, V3, V4, a_straggler, head, open_calls, row, rows, tq_call, v1_row
from tests.trace.made import record

PACKAGE = Path(trace.__file__).parent
NAMES = ("Total RPC Calls", "Average Total Time", "Effective Time")
WORD = r"[A-Za-z]{2,}"
UNITS = {"ms", "us", "ns", "MiB", "KiB", "GiB", "GB", "id"}


def sentences(text: str) -> list[str]:
    """Return what reads like English: three words in a row, or two of which one is a small word."""
    for name in NAMES:
        text = text.replace(name, "")
    text = re.sub(r"`[^`]*`|\S*[/_.=]\S*", "", text)
    phrases = re.findall(rf"{WORD}(?:,? {WORD}){{2,}}", text)
    phrases += re.findall(r"\b\w+ (?:the|of|is|are|a|an|to|and|or|no|not|that|was|were)\b", text)
    return [phrase for phrase in phrases if not set(re.split(r"[ ,]+", phrase)) <= UNITS]


def zmq_log() -> str:
    text = head(V1, "TCP") + "".join(v1_row(n, "BatchLinear") for n in range(1, 60))
    text += "".join(row(n, "M", 0.01, 0.01, 0.05, 0.01, 0.2 if n % 9 else 90, 0.1, 0.1, 99) for n in range(70, 400))
    text += row(1, "Odd", -1, 2, 6, 1, 5, 1, 1, 99) + row(2, "Odd", 1, 2, 6, 1, 5, 0, 1, 99) + "...\n"
    text += row(3, "Odd", 1, 2, 6, 1, float("nan"), 1, 1, 99) + "junk\n" + "x" * 70_000 + "\n"
    text += "SUMMARY\nTotal RPC Calls: 98\nAverage Total Time: 1.0 ms\nEffective Time: -0.6 s\n"
    text += head(V4, "IPC+SHM") + rows(range(1, 40), "A", 3, 40, 2, 60, 1, 55, 110, 4000, 8)
    return text + head(V3).replace("Total", "Whole")


def tq_log() -> str:
    lines = open_calls() + a_straggler() + tq_call(500.0, (0.3, 0.2, 0.1), "quiet")[:5]
    lines += [line for n in range(40) for line in tq_call(n / 9, (1e-6, 1e-6, 1e-6), f"f{n % 2}")]
    lines += [line.replace("get_ratio=50", "get_ratio=90") for line in tq_call(700.0, (0.3, 0.2, 0.1), "g")]
    lines += ["[TQ-TRACE] trace_id=N/A | func=f | stage=FUNCTION_START\n"]
    lines += ["[TQ-TRACE] trace_id=N/A | func=f | stage=FUNCTION_END | total_duration=1s\n"] * 2
    lines += ["[TQ-LOG] op=TQ_GET | func=f | stage=END | duration=0.5s [repeated 3x across cluster]\n"]
    return "".join([*lines, "[TQ-TRACE] x\n"])


@pytest.mark.parametrize("rules", ["default", "seed"])
@pytest.mark.parametrize("form", ["text", "markdown"])
def test_reports_on_logs(tmp_path: Path, rules: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zmq.log").write_text(zmq_log())
    (tmp_path / "tq.log").write_text(tq_log())
    (tmp_path / "broken.log.gz").write_bytes(gzip.compress(zmq_log().encode())[:-200])
    (tmp_path / "worse.log.gz").write_bytes(gzip.compress(b"x" * 100)[:12] + b"\xff" * 20)
    for name in ("zmq.log", "tq.log", "broken.log.gz", ""):
        path = tmp_path / name
        assert main(["trace", "report", str(path), "--lang", "zh", "--rules", rules, "--format", form]) == 0
        out = capsys.readouterr().out
        assert "审计" in out
        assert sentences(out) == []


def test_reports_on_own_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, 200, methods=("m0", "m1"))
    data = next(tmp_path.glob("*.ipct")).read_bytes()
    (tmp_path / "torn.ipct").write_bytes(data[:-8] + b"\1" * 8)
    (tmp_path / "empty.ipct").write_bytes(b"")
    (tmp_path / "short.ipct").write_bytes(data[:100])
    (tmp_path / "other.ipct").write_bytes(b"x" * 5000)
    (tmp_path / "newer.ipct").write_bytes(data[:8] + b"\x09" + data[9:])
    assert main(["trace", "report", str(tmp_path), "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "client（客户端）" in out  # noqa: RUF001
    assert sentences(out) == []


def test_everything_that_is_counted_has_words() -> None:
    counted = {
        what
        for path in (PACKAGE / "readers").rglob("*.py")
        for what in re.findall(r'counts\[\s*"([^"]+)"', path.read_text(encoding="utf-8"))
    }
    counted |= {LOSING, HEADLESS}
    assert counted - {"TQ lines", "rows with a printed throughput"} == set(COUNTS)
    for words in (*COUNTS.values(), *SAYINGS.values()):
        assert sentences(words) == []


@pytest.mark.parametrize("words", [WORDS, PAGE_WORDS], ids=["report", "page"])
def test_every_sentence_is_there_twice_with_the_same_values(words: dict[str, tuple[str, str]]) -> None:
    for key, both in words.items():
        english, chinese = [{field for _, field, _, _ in string.Formatter().parse(text) if field} for text in both]
        assert english == chinese, key
        assert sentences(both[1]) == [], key
        assert all(both), key
