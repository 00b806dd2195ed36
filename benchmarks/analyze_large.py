"""How much time and memory `ipcbench analyze` takes for a large run: 2,000 trials with 20 million samples.

python benchmarks/analyze_large.py [--messages 10000] [--thinned] [--keep FOLDER]

The run is synthetic, but stored by the same `RunWriter` as a real run: five backends, ten sizes, twenty rounds, half of
the trials paced and half saturated, one reader. A real run keeps at most about 2,048 rows per trial (KEPT_SAMPLES),
the rest is in its quantiles; `--thinned` does the same. Without it, every message's row is stored: the harder case.
The printed figures cover one whole process, from start to end: tables, plots and report.html.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ipcbench.harness.digest import KEPT_SAMPLES, quantiles
from ipcbench.results.model import (
    SCHEMA_VERSION,
    Conditions,
    EndpointResult,
    Floor,
    Integrity,
    RunInfo,
    TrialResult,
    Usage,
)
from ipcbench.results.store import RunWriter
from ipcbench.spec import SweepSpec

BACKENDS = ("shm", "zmq", "zmq-tcp", "lmdb", "pipe")
SIZES = tuple(4**power for power in range(3, 13))
ROUNDS = 20
MOST_S, MOST_BYTES = 20.0, 1.5e9
START_NS = 10**12


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000, help="messages per trial")
    parser.add_argument(
        "--thinned", action="store_true", help=f"store at most {KEPT_SAMPLES} rows a trial, as a run does"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="create the run in this folder, and keep it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "large"
        count = store(folder, arguments.messages, thinned=arguments.thinned)
        stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{count:,} trials, {count * arguments.messages:,} samples, {stored / 1e6:,.0f} MB stored", flush=True)
        seconds, peak_bytes = analyze(folder, Path(scratch) / "out")
    allowed = f"{MOST_S:g} s and {MOST_BYTES / 1e6:,.0f} MB are allowed"
    print(f"analyze: {seconds:.1f} s, at most {peak_bytes / 1e6:,.0f} MB; {allowed}")
    return int(seconds > MOST_S or peak_bytes > MOST_BYTES)


def analyze(folder: Path, out: Path) -> tuple[float, float]:
    """Return the wall time of `ipcbench analyze` and its process's peak memory, in bytes."""
    command = (sys.executable, "-m", "ipcbench", "analyze", str(folder), "--out", str(out))
    began = time.monotonic()
    quiet = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    process = os.posix_spawn(sys.executable, command, os.environ, file_actions=[quiet])
    _, status, used = os.wait4(process, 0)
    seconds = time.monotonic() - began
    if status or not (out / "report.html").is_file():
        raise SystemExit("analyze failed")
    return seconds, used.ru_maxrss * 1024.0


def store(folder: Path, messages: int, *, thinned: bool) -> int:
    """Store the run and return how many trials it has."""
    sweep = SweepSpec(
        backends=BACKENDS,
        readers=1,
        payload="bytes",
        sizes=SIZES,
        codec="raw",
        modes=("paced", "saturate"),
        rounds=ROUNDS,
        control=False,
    )
    generator = np.random.default_rng(1)
    stride = -(-messages // KEPT_SAMPLES) if thinned else 1
    with RunWriter.create(folder, run_info(sweep)) as writer:
        for round_index in range(ROUNDS):
            for place, backend in enumerate(BACKENDS):
                for size in SIZES:
                    median_ns = (10_000.0 + size / 10.0) * (1.0 + 0.3 * place) * generator.uniform(0.95, 1.05)
                    for mode in sweep.modes:
                        spec = sweep.trial(backend, size, size, mode, round_index)
                        writer.append(*trial(spec, writer.next_trial_id, median_ns, messages, stride, generator))
        return writer.next_trial_id


def trial(spec, trial_id, median_ns, messages, stride, generator):
    """Return a trial and its columns, as a paced or saturated trial leaves them."""
    paced = spec.mode == "paced"
    times = (median_ns * np.exp(0.3 * generator.standard_normal(messages))).astype(np.int64)
    steps = np.full(messages, round(1e9 / spec.rate_per_s)) if paced else times
    intended = START_NS + np.cumsum(steps)
    sent = intended + generator.integers(100, 900, messages)
    received = intended + times
    calls = generator.integers(300, 3000, messages)
    columns = {"writer.intended_ns": intended, "writer.sent_ns": sent, "writer.write_ns": calls}
    columns |= {
        "reader-0.sequence": np.arange(messages),
        "reader-0.received_ns": received,
        "reader-0.read_ns": calls + 500,
        "reader-0.decode_ns": np.zeros(0, dtype=np.int64),
    }
    columns |= {"reader-0.latency_ns": times} if paced else {}
    seconds = float(received[-1] - received[0]) / 1e9
    usage = Usage(0.4 * seconds, 0.1 * seconds, messages, 5, 0, 0, 30 * 2**20)
    span = {"first_ns": int(received[0]), "last_ns": int(received[-1]), "usage": usage, "sample_stride": stride}
    common = {"process_id": 1, "messages_count": messages, "decode": None, **span}
    integrity = Integrity(expected_count=messages, received_count=messages, hashed_count=messages // 64)
    writer = EndpointResult("writer", call=quantiles(calls), latency=None, integrity=Integrity(), **common)
    latency = quantiles(times) if paced else None
    reader = EndpointResult("reader-0", call=quantiles(calls + 500), latency=latency, integrity=integrity, **common)
    result = TrialResult(
        trial_id,
        spec,
        "ok",
        "",
        1.7e9 + trial_id,
        seconds,
        endpoints=(writer, reader),
        throughput_per_s=None if paced else (messages - 1) / seconds,
        achieved_rate_per_s=spec.rate_per_s if paced else None,
        conditions=Conditions(0.5, 0.0, 0.0, 120.0, 125.0, 50.0, 900.0, clocks_agree=True),
    )
    return result, {name: column[::stride] for name, column in columns.items()}


def run_info(sweep):
    return RunInfo(
        run_id="20260101T000000Z-000000",
        schema_version=SCHEMA_VERSION,
        started_unix_s=1.7e9,
        command=("ipcbench", "run"),
        sweep=sweep.as_dict(),
        payloads=tuple({"size": size, "payload_bytes": size, "encode_ns": 0.0} for size in sweep.sizes),
        machine={"cpu_model": "Synthetic", "usable_cores": 8.0},
        versions={},
        skipped={},
        floor=Floor(400.0, 600.0, 45.0, 1.0, {str(size): 1e10 for size in sweep.sizes}),
        status="complete",
        rounds_done=sweep.rounds,
    )


if __name__ == "__main__":
    sys.exit(main())
