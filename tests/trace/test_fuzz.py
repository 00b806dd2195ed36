"""Damaged logs and segments: each ends in a report or in one clear error, never in a traceback, in bounded memory.

Some hundred examples; `IPCBENCH_FUZZ=10000 pytest tests/trace/test_fuzz.py` tries as many as it says.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipcbench import trace
from ipcbench.cli import main
from ipcbench.trace.format import HEADER_BYTES, MARKER, NAME, PACK_NAME, RECORD_BYTES
from tests.trace.logs import V1, V3, V4, head, row, tq_call, v1_row
from tests.trace.made import rpc
from tests.trace.reading import run_program

EXAMPLES = int(os.environ.get("IPCBENCH_FUZZ", "400"))
PEAK_GROWTH_KIB = 150 * 1024
FORMS = ("text", "markdown", "json", "csv")

usual = settings(
    max_examples=EXAMPLES // 4, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip

ZMQ = "".join([
    head(V1), *(v1_row(n, f"method {n % 3}") for n in range(1, 90)), "=" * 120, "\nSUMMARY\nTotal RPC Calls: 89\n",
    "Average Total Time: 10.0 ms\n", "Section:\n  Total: 3.5 s\n", head(V4, "IPC+SHM"),
    row(1, "A", 3, 1, 2, 6, 1, 5, 10.5, 4, 8), head(V3, "TCP", " (Ours)"),
    *(row(n, "B", 1, 2, 6, 1, 10, 5, 10.5, 4, 8) for n in range(1, 30)), "...\n", v1_row(31)[:40],
]).encode()  # fmt: skip

RAY = "\x1b[36m(WorkerDict pid=12, ip=10.0.0.2)\x1b[0m "
TQ = "".join([
    *(line for n in range(12) for line in tq_call(5.0 + n, prefix=RAY)), "50%|##  | 1/2\n",
    "[TQ-DETAIL] trace_id=N/A | func=f | pid=1 | stage=TQ_CLIENT_PUT_START | batch_size=torch.Size([32, 4]) | "
    "data_size_mb=2.00 | timestamp=1.000000\n",
    "[TQ-DETAIL] trace_id=N/A | func=f | pid=1 | stage=TQ_CLIENT_PUT_END | duration=0.500000s | "
    "throughput_mbps=4.00 | timestamp=1.500000 [repeated 3x across cluster]\n",
    "[TQ-DETAIL] trace_id=N/A | stage=TQ_CLIENT_GET_END | duration=0.250000s | data_size_mb=1.00 | timestamp=1.5\n",
    "[TQ-LOG] op=TQ_GET | func=f | stage=START[TQ-LOG] op=TQ_GET | func=f | stage=END | duration=0.5s\n",
]).encode()  # fmt: skip

SHORT = "".join([
    head(V1), *(v1_row(n) for n in range(1, 6)), "=" * 120, "\nSUMMARY\nTotal RPC Calls: 5\n", head(V4, "IPC+SHM"),
    row(1, "A", 3, 1, 2, 6, 1, 5, 10.5, 4, 8), *tq_call(5.0),
]).encode()  # fmt: skip

NUMBERS = [b"nan", b"inf", b"-inf", b"1e308", b"-1e308", b"1e999", b"9" * 25, b"9" * 400, b"0", b"-1", b"1e-320",
           b"1_0", b"0x10", b"", b"18446744073709551616", b"9223372036854775807", "٣".encode(), b"1.2.3", b".",
           b"-0.000"]  # fmt: skip
PIECES = [b"\xef\xbb\xbf", b"\xff", b"\0", b"\n", b"\r", b"\r\n", b"|", b" | ", b"=", b"-", b"[TQ-", b"[TQ-TRACE] ",
          b"\x1b[0m", b"SUMMARY\n", b"ID    Method ", b"ZeroMQ Performance Log - Transport: ", b"...", b"(W pid=1)",
          b"\x1f\x8b", b"x" * 70_000, b"stage=", b"duration=", b"[repeated 99999999999x across cluster]"]  # fmt: skip


def mutate(data: bytes, chosen: random.Random) -> bytes:
    """Return the data with a few things wrong in them."""
    out = bytearray(data)
    for _ in range(chosen.randint(1, 8)):
        at, length = chosen.randrange(len(out) + 1), chosen.choice([1, 8, 60, 500, 5000])
        chosen.choice(MUTATIONS)(out, at, length, chosen)
        del out[2_000_000:]
    return bytes(out)


def flip(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    if at < len(out):
        out[at] ^= 1 << chosen.randrange(8)


def cut(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    del out[at : at + length]


def repeat(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    out[at:at] = out[at : at + length] * chosen.choice([1, 2, 20])


def insert(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    out[at:at] = chosen.choice(PIECES)


def scramble(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    out[at : at + length] = chosen.randbytes(min(length, 60))


def glue(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    end = out.find(b"\n", at)
    del out[end : end + (end >= 0)]


def renumber(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    number = re.compile(rb"[0-9.]+").search(out, at)
    if number:
        out[number.start() : number.end()] = chosen.choice(NUMBERS)


def break_off(out: bytearray, at: int, length: int, chosen: random.Random) -> None:
    del out[at if chosen.random() < 0.1 else max(at, len(out) // 2) :]


MUTATIONS = (flip, cut, repeat, insert, scramble, glue, renumber, break_off)


def lie(data: bytes, chosen: random.Random) -> bytes:
    """Return a file of a trace with wrong words in it: in its header, in records and names that look whole."""
    out = bytearray(data)
    for _ in range(chosen.randint(1, 8)):
        word = chosen.choice([0, 1, 127, 128, 4095, 4096, 2**16 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])
        kind = chosen.randrange(5)
        if kind == 0:
            struct.pack_into("<I", out, chosen.choice([8, 10, 12]), word % 2**32)
        elif kind == 1:
            begin = chosen.randrange(16, 300)
            out[begin : begin + chosen.randrange(20)] = chosen.choice([*NUMBERS, b"null", b'"', b"}", b"[[[[", b"{}"])
            del out[len(data) :]
        elif len(out) >= HEADER_BYTES + RECORD_BYTES:
            slot = HEADER_BYTES + chosen.randrange((len(out) - HEADER_BYTES) // RECORD_BYTES) * RECORD_BYTES
            if kind == 2:
                struct.pack_into("<Q", out, slot + 8 * chosen.randrange(15), word)
            elif kind == 3:
                struct.pack_into("<B", out, slot + chosen.randrange(16), word % 256)
            else:
                PACK_NAME(out, slot, NAME, 0, word % 2**16, chosen.randrange(3), chosen.choice([0, 5, 65535]), b"\n",
                          slot ^ MARKER)  # fmt: skip
    return bytes(out)


@pytest.fixture(scope="module")
def own_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("own")
    recorder = trace.start(folder, sample=2, service="client")
    for number in range(300):
        rpc(recorder, f"m{number % 4}", 1000, 500, trace_id=number if number % 5 == 0 else None)
    trace.stop()
    return {path.suffix: path.read_bytes() for path in folder.iterdir()}


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Fail if a test takes much more memory at its peak than there was."""
    before = peak_kib()
    yield
    assert peak_kib() - before < PEAK_GROWTH_KIB


def check(path: Path, capsys: pytest.CaptureFixture[str], number: int) -> None:
    """Report on a path as the command does."""
    rules = ("default", "seed")[number % 2]
    arguments = ["--format", FORMS[number % 4], "--lang", ("en", "zh")[number // 4 % 2], "--rules", rules]
    code = main(["trace", "report", str(path), *arguments])
    out, err = capsys.readouterr()
    if code == 0:
        assert out
        assert "Traceback" not in err
        assert out.replace("\n", "").isprintable(), "a report that a terminal would obey"
    else:
        assert code == 2
        assert len(err.splitlines()) == 1
        assert err.startswith("ipcbench: error: ")


@pytest.mark.parametrize("log", [ZMQ, TQ, SHORT], ids=["zmq", "tq", "short"])
@usual
@given(seed=st.integers(0, 2**32))
def test_damaged_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: bytes, seed: int) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(mutate(log, random.Random(seed)))
    check(path, capsys, seed)


@usual
@given(seed=st.integers(0, 2**32))
def test_damaged_compressed_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    chosen = random.Random(seed)
    inside = [chosen.choice([ZMQ, TQ, mutate(ZMQ + TQ, chosen)]) for _ in range(chosen.randint(1, 3))]
    path = tmp_path / "x.log.gz"
    path.write_bytes(mutate(b"".join(map(gzip.compress, inside)), chosen))
    check(path, capsys, seed)


@usual
@given(seed=st.integers(0, 2**32))
def test_damaged_own_files(
    tmp_path: Path, own_files: dict[str, bytes], capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    chosen = random.Random(seed)
    folder = tmp_path / "trace"
    folder.mkdir(exist_ok=True)
    for suffix, data in own_files.items():
        damage = chosen.choice([mutate, lie, lie])
        (folder / f"one{suffix}").write_bytes(damage(data[:60_000], chosen))
    check(folder, capsys, seed)
    check(folder / f"one{chosen.choice(['.ipct', '.ipch'])}", capsys, seed)


def test_a_folder_of_traps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    (tmp_path / "up.log").symlink_to(tmp_path)
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    (tmp_path / "missing.ipct").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.log")
    os.mkfifo(tmp_path / "pipe.ipct")
    check(tmp_path, capsys, 0)
    for name in ("loop.log", "zero.log", "missing.ipct", "pipe.log", "pipe.ipct"):
        assert main(["trace", "report", str(tmp_path / name)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    (tmp_path / "good.log").write_bytes(ZMQ)
    assert main(["trace", "report", str(tmp_path)]) == 0


def test_a_line_without_end_and_a_bomb(tmp_path: Path) -> None:
    """A process of its own, so that its peak is its own: a quarter of a GiB of nothing, plain and in a few KiB."""
    with (tmp_path / "long.log").open("wb") as file:
        file.write(ZMQ + b"[TQ-TRACE] ")
        file.truncate(2**28)
    with gzip.open(tmp_path / "bomb.log.gz", "wb", 1) as packed:
        packed.write(ZMQ)
        for _ in range(256):
            packed.write(bytes(2**20))
    code = (
        "import sys; from ipcbench.cli import main; code = main(sys.argv[1:]); "
        "status = open('/proc/self/status').read(); "
        "print(status.partition('VmHWM:')[2].split()[0]); sys.exit(code)"
    )
    for name in ("long.log", "bomb.log.gz"):
        assert int(run_program(code, "trace", "report", tmp_path / name).split()[-1]) < 120 * 1024


@pytest.mark.parametrize(
    "lines",
    [
        lambda n: f"[TQ-TRACE] trace_id={n} | func=f{n} | pid=1 | stage=FUNCTION_START | timestamp={n}.000000\n",
        lambda n: f"(W{n} pid={n}) [TQ-TRACE] trace_id={n} | func={'f' * 900} | stage=GET_END | duration=1s\n",
        lambda n: f"(W{n} pid={n}) [TQ-DETAIL] trace_id={n} | stage=TQ_CLIENT_PUT_START | data_size_mb=1.00\n",
        lambda n: f"[TQ-LOG] op=o{n} | func=f | stage=END | duration=1s\n",
        lambda n: head(V1) + v1_row(1) if n == 0 else v1_row(1 + n % 2, f"m{n}"),
        lambda n: head(V1) + v1_row(1) if n == 0 else "SUMMARY\n" + f"key {n}: 1\n" * 3,
        lambda n: head(V1) + v1_row(1) if n == 0 else f"1 {'name ' * 20}{n} 1 1 1 1 5 1 1 nan\n",
    ],
)
def test_memory_does_not_grow_with_what_a_log_names(tmp_path: Path, lines: Callable[[int], str]) -> None:
    path = tmp_path / "x.log"
    with path.open("w") as file:
        file.write("".join(map(lines, range(20_000))))
    main(["trace", "report", str(path), "--format", "csv"])
