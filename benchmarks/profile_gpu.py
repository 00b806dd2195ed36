"""Everything that `ipcbench profile` says of a GPU, in at most five minutes, each part in processes of its own.

    PYTHONPATH=. python benchmarks/profile_gpu.py --out FOLDER [--limit 290] [--only PART,…]

Without a GPU, `--device cpu --model qwen3-tiny` tries the script itself. The folder gets summary.json, a log of each
part, and an archive of the profiles. A part that fails or takes too long is said so; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any


def parts(model: str, device: str, out: Path) -> Iterator[tuple[str, float, list[str]]]:
    """Yield name, limit in seconds and command of each part, the most important first."""
    own = [sys.executable, __file__, "--device", device, "--model", model, "--out", str(out)]
    tool = [sys.executable, "-m", "ipcbench", "profile"]
    run = [*tool, "run", "--device", device]
    is_gpu = device != "cpu"
    large = ["--model", model, "--dtype", "bfloat16", "--seq", "512" if is_gpu else "32"]
    small = [
        "--model",
        "qwen3-small" if is_gpu else model,
        "--seq",
        "128" if is_gpu else "16",
        "--tokens",
        "4",
        "--warmup",
        "1",
    ]

    def profiled(name: str, *options: str) -> list[str]:
        return [*run, *options, "--out", str(out / "profiles" / name)]

    yield "facts", 40, [*own, "--part", "facts"]
    yield "methods", 80, [*own, "--part", "methods"]
    yield "methods-large", 60, [*own, "--part", "methods-large"]
    yield "none-large", 80, profiled("none-large", *large, "--tokens", "16", "--steps", "8")
    yield (
        "split-shm",
        45,
        profiled("split-shm", *small, "--parallel", "split", "--transport", "shm", "--detail", "block", "--steps", "5"),
    )
    yield "bandwidth", 75, [
        *tool, "sweep", "bandwidth", "--transport", "shm", "--budget", "45s", "--out",
        str(out / "profiles" / "bandwidth"), "--sizes", "1MiB,16MiB,256MiB,2GiB" if is_gpu else "1MiB",
    ]  # fmt: skip
    yield (
        "tp2-shm",
        45,
        profiled("tp2-shm", *small, "--parallel", "tp2", "--transport", "shm", "--detail", "block", "--steps", "5"),
    )
    pageable = ["--import", "benchmarks.pageable_staging"] if is_gpu else []
    yield (
        "split-shm-pageable",
        45,
        profiled(
            "split-shm-pageable",
            *small,
            "--parallel",
            "split",
            "--transport",
            "shm",
            "--detail",
            "block",
            "--steps",
            "5",
            *pageable,
        ),
    )
    for name in ("zmq", "pipe", "gloo"):
        yield (
            f"split-{name}",
            40,
            profiled(
                f"split-{name}", *small, "--parallel", "split", "--transport", name, "--detail", "block", "--steps", "5"
            ),
        )
    yield "staging", 30, [*own, "--part", "staging"]
    yield "nccl", 30, [*own, "--part", "nccl"]
    yield "none-small", 40, profiled("none-small", *small, "--steps", "8")
    yield (
        "tp2-gloo",
        40,
        profiled("tp2-gloo", *small, "--parallel", "tp2", "--transport", "gloo", "--detail", "block", "--steps", "5"),
    )


def carry_out(asked: argparse.Namespace) -> int:
    """Run the parts, one after the other, and write what they said after each."""
    began_s, out = time.monotonic(), Path(asked.out).resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"python": platform.python_version(), "kernel": platform.release(), "parts": {}}
    for name, most_s, command in parts(asked.model, asked.device, out):
        if asked.only and name not in asked.only.split(","):
            continue
        left_s = asked.limit - (time.monotonic() - began_s)
        if left_s < 12:
            summary["parts"][name] = {"status": "not measured", "reason": "the time was up"}
        else:
            summary["parts"][name] = one(name, command, min(most_s, left_s), out)
        (out / "summary.json").write_text(json.dumps(summary, indent=1))
        print(f"{time.monotonic() - began_s:6.1f} s  {name}: {summary['parts'][name]['status']}", flush=True)
    with tarfile.open(out / "profiles.tar.gz", "w:gz") as archive:
        for file in sorted((out / "profiles").rglob("*")) if (out / "profiles").is_dir() else ():
            if file.is_file() and file.suffix != ".png" and file.name != "trace.perfetto":
                archive.add(file, file.relative_to(out))
    for folder in (out / "profiles", out / "logs"):
        _pack(folder, out)
    print(json.dumps(summary)[:6000])
    return 0 if any(part["status"] == "done" for part in summary["parts"].values()) else 1


def one(name: str, command: list[str], limit_s: float, out: Path) -> dict[str, Any]:
    """Run a part in a session of its own, which is ended after its time; return how it went and what it said."""
    log, result, began_s = out / "logs" / f"{name}.txt", out / f"part-{name}.json", time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]),
                   os.environ.get("PYTHONPATH", "")]), "PYTHONUNBUFFERED": "1", "COLUMNS": "110"}  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process may compile all of torch again
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=environment, start_new_session=True)  # fmt: skip
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = "done" if code == 0 else "took too long" if code is None else f"failed ({code})"
    lines = log.read_text(errors="replace").splitlines()
    found: dict[str, Any] = {
        "status": status,
        "took_s": round(time.monotonic() - began_s, 1),
        "last_lines": lines[-40:],
    }
    if result.is_file():
        found["figures"] = json.loads(result.read_text())
        result.unlink()
        found["last_lines"] = lines[-10:]
    elif (out / "profiles" / name / "profile.json").is_file():
        found["figures"] = figures_of(out / "profiles" / name)
    return found


def figures_of(folder: Path) -> dict[str, Any]:
    """Return the main figures of a profile: times as [low, estimate, high], or the estimate alone after few rounds."""
    from ipcbench.profile.records import read_profile
    from ipcbench.profile.summary import summarize

    def told(value: float, interval: Any) -> list[float]:
        return [interval.low, value, interval.high] if interval else [value]

    made = summarize(profile := read_profile(folder))
    found: dict[str, Any] = {"verified_on": profile.verified_on, "setting": asdict(profile.setting),
                             "relative_error": profile.agreement and profile.agreement.relative_error}  # fmt: skip
    for total in made.totals:
        cost, latency = total.overhead.ratio, total.latency
        row = found[total.phase] = {
            "latency_ns": latency and told(latency.value, latency.interval),
            "spans_cost_ratio": cost and told(cost.estimate, cost),
            "ranks": {},
        }
        for each in (each for each in made.phases if each.phase == total.phase):
            found_here = [each for each in profile.operators if each.phase == total.phase]
            kernels = sum(each.exclusive_ns for each in found_here)
            embedding = sum(each.exclusive_ns for each in found_here if each.path == "embed_tokens")
            row["ranks"][str(each.rank)] = {
                "wall_ns": each.wall.value,
                "coverage_ratio": each.coverage_ratio,
                "kernels_ns": kernels or None,
                "embedding_kernels_ns": embedding or None,
                **{f"{part.name.replace(' ', '_')}_ns": part.ns for part in each.buckets},
            }
    found["memory"] = [{name: getattr(each, name) for name in each.__struct_fields__ if name != "layers"}
                       for each in profile.memory]  # fmt: skip
    return found


def _pack(folder: Path, out: Path) -> None:
    """Put the files of a folder that are worth looking at one by one beside the archive, and remove the folder."""
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.suffix == ".txt":
            with (out / "logs.txt").open("a") as logs:
                logs.write(f"\n===== {file.stem}\n{file.read_text(errors='replace')[-6000:]}\n")
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def facts(_: argparse.Namespace) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "cpus": os.cpu_count()}
    if torch.cuda.is_available():
        from ipcbench.harness.worker import Worker
        from ipcbench.profile.sweep.copies import describe

        found["gpus"] = describe(Worker(0), {})["gpus"]
        found["properties"] = repr(torch.cuda.get_device_properties(0))
        query = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,clocks.max.memory,clocks.sm,power.limit",
            "--format=csv",
        ]
        for name, command in (("nvidia_smi", query), ("topology", ["nvidia-smi", "topo", "-m"])):
            try:
                found[name] = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                found[name] = str(error)
    return found


def methods(asked: argparse.Namespace) -> dict[str, Any]:
    """Compare steps without instruments, with spans by events, and synchronized before and after each block."""
    import torch

    from ipcbench.profile.model.loading import device_of, load, prompt
    from ipcbench.profile.model.parallel import Runner
    from ipcbench.profile.records import Setting
    from ipcbench.profile.timing.spans import Spans
    from ipcbench.util.clock import now_ns

    is_gpu, tokens = asked.device != "cpu", 24
    seq, batch = (512, 1) if asked.part == "methods" else (2048, 8)  # of which the GPU has more to do than the program
    if not is_gpu:
        seq, batch = 32, min(2, batch)
    setting = Setting(model=asked.model, device=asked.device, dtype="bfloat16", seq=seq, tokens=tokens, batch=batch)
    device = device_of(setting, 0)
    loaded = load(setting)
    ids = prompt(setting, loaded.facts.vocab_size).to(device)
    runner = Runner(loaded, setting)
    wait: Callable[[], None] = (lambda: torch.cuda.synchronize(device)) if is_gpu else (lambda: None)

    @contextmanager
    def instrument(method: str) -> Iterator[Spans | None]:
        with ExitStack() as stack:
            if method == "synchronized":
                stack.enter_context(_waiting(runner, wait, after=True))
            spans = None
            if method != "plain":
                spans = stack.enter_context(
                    Spans(runner, "block", device if method == "events" else torch.device("cpu"))
                )
            if method == "synchronized":
                stack.enter_context(_waiting(runner, wait, after=False))
            yield spans

    def step(phase: str, position: int) -> object:
        return (
            runner.step(ids[:, :seq]) if phase == "prefill" else runner.step(ids[:, position : position + 1], position)
        )

    rows: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}
    turns, end_s = random.Random(0), time.monotonic() + (20 if is_gpu else 5)
    for number in range(60):
        if number > 5 and time.monotonic() > end_s:
            break
        found: dict[str, dict[str, Any]] = {"prefill": {}, "decode": {}}
        for method in turns.sample(("plain", "events", "synchronized"), 3):
            with instrument(method) as spans:
                for phase, count in (("prefill", 1), ("decode", tokens)):
                    walls, sums, roots = [], [], []
                    for offset in range(count):
                        wait()
                        began_ns = now_ns()
                        step(phase, seq + offset)
                        wait()
                        walls.append(now_ns() - began_ns)
                        if spans is not None:
                            taken = spans.taken(offset)
                            roots.append(next(span.duration_ns for span in taken if span.kind == "root"))
                            blocks = ("embedding", "layer", "norm", "lm_head")
                            sums.append(sum(span.duration_ns for span in taken if span.kind in blocks))
                    found[phase][method] = {"wall_ns": walls, "root_ns": roots, "blocks_ns": sums}
        if number > 2:  # after three for warmth
            for phase, kept in rows.items():
                kept.append(found[phase])
    recorded = _record_ns(device) if is_gpu else {}
    facts = {"seq": seq, "batch": batch, "tokens": tokens, "model": asked.model, "dtype": "bfloat16"}
    compared = {phase: _compared(each) for phase, each in rows.items()}
    return {**facts, "rounds": len(rows["prefill"]), **recorded, **compared}


def _record_ns(device: Any) -> dict[str, list[float]]:
    """Return what the program takes to record an event, as torch's method does and as spans do; beside it, to start
    the smallest kernel, and to wait for a device that has nothing to do.
    """
    import torch

    from ipcbench.profile.sweep.cases import figure
    from ipcbench.profile.timing.spans import _Events

    events, tensor, count = _Events(device, 500), torch.zeros(1, device=device), 1000
    plain = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for event in plain:
        event.record()
    free = list(events._free)

    def as_spans(_: int) -> None:
        events.record()

    ways: dict[str, Callable[[int], object]] = {
        "record_ns": lambda number: plain[number].record(),
        "record_by_spans_ns": as_spans,
        "kernel_ns": lambda _: tensor.add_(1),
        "synchronize_ns": lambda _: torch.cuda.synchronize(device),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(7):
        for name, way in ways.items():
            events._free = list(free)
            torch.cuda.synchronize(device)
            began_ns = time.monotonic_ns()
            for number in range(count):
                way(number)
            times[name].append((time.monotonic_ns() - began_ns) / count)
    return {name: [(f := figure(each)).low, f.estimate, f.high] for name, each in times.items()}


@contextmanager
def _waiting(runner: Any, wait: Callable[[], None], *, after: bool) -> Iterator[None]:
    from ipcbench.profile.timing.blocks import around, targets

    def make(_: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            if not after:
                wait()
            output = forward(*args, **kwargs)
            if after:
                wait()
            return output

        return waiting

    with around(targets(runner), make):
        yield


def _compared(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over rounds with 95 % intervals: walls, and ratios of pairs of the same round."""
    import numpy as np

    from ipcbench.profile.sweep.cases import figure

    def of(method: str, name: str) -> list[float]:
        return [float(np.median(each[method][name])) for each in rounds]

    def told(values: list[float]) -> list[float]:
        found = figure(values)
        return [found.low, found.estimate, found.high]

    def ratio(above: list[float], below: list[float]) -> list[float]:
        return told([a / b for a, b in zip(above, below, strict=True)])

    plain = of("plain", "wall_ns")
    made = {"plain_wall_ns": told(plain)}
    for method in ("events", "synchronized"):
        wall, root, blocks = (of(method, name) for name in ("wall_ns", "root_ns", "blocks_ns"))
        made |= {
            f"{method}_wall_ns": told(wall),
            f"{method}_wall_of_plain_ratio": ratio(wall, plain),
            f"{method}_root_of_own_wall_ratio": ratio(root, wall),
            f"{method}_root_of_plain_wall_ratio": ratio(root, plain),
            f"{method}_blocks_of_plain_wall_ratio": ratio(blocks, plain),
        }
    return made


def staging(asked: argparse.Namespace) -> dict[str, Any]:
    """Compare the copies that a transport needs of a GPU's tensors: pinned, allocated for each, and pageable."""
    import torch

    from ipcbench.profile.comm.group import _OnHost
    from ipcbench.profile.sweep.cases import figure

    device = torch.device("cuda" if asked.device != "cpu" else "cpu")
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    found: dict[str, Any] = {}
    for size in (2**12, 2**16, 2**20, 2**24, 2**26):
        tensor = torch.ones(size // 4, device=device)

        def pinned(tensor: Any = tensor) -> None:
            with _OnHost(tensor):
                pass

        def pageable(tensor: Any = tensor) -> None:
            tensor.copy_(tensor.to("cpu", copy=True))

        times: dict[str, list[float]] = {"pinned_ns": [], "pageable_ns": []}
        count = max(3, min(200, 2**27 // size))
        for turn in range(8):
            for name, move in (("pinned_ns", pinned), ("pageable_ns", pageable))[:: 1 if turn % 2 else -1]:
                wait()
                began_ns = time.monotonic_ns()
                for _ in range(count):
                    move()
                wait()
                if turn:
                    times[name].append((time.monotonic_ns() - began_ns) / count)
        ratios = [a / b for a, b in zip(times["pageable_ns"], times["pinned_ns"], strict=True)]
        shown = {**times, "pageable_of_pinned_ratio": ratios}
        found[str(size)] = {name: [(f := figure(each)).low, f.estimate, f.high] for name, each in shown.items()}
    return found


def nccl(asked: argparse.Namespace) -> dict[str, Any]:
    """Make calls through the pass-through group of one rank over NCCL, and show what it recorded."""
    import tempfile

    import torch
    import torch.distributed as dist

    from ipcbench.profile.comm import group
    from ipcbench.profile.comm.recorder import Recorder

    device = torch.device("cuda" if asked.device != "cpu" else "cpu")
    recorder = Recorder(0)
    with tempfile.TemporaryDirectory() as folder:
        transport = "nccl" if device.type == "cuda" else "gloo"
        group.start(transport, 0, 1, [], f"file://{folder}/meeting", recorder)
        dist.barrier()
        recorder.begin(0)
        tensor = torch.full((1024,), 3.0, device=device)
        dist.all_reduce(tensor)
        gathered = [torch.empty_like(tensor)]
        dist.all_gather(gathered, tensor)
        dist.broadcast(tensor, 0)
        objects: list[Any] = [None]
        dist.gather_object({"rank": 0}, objects)
        if device.type == "cuda":
            torch.cuda.synchronize()
        recorder.end()
        rows = recorder.taken()
        group.stop()
    return {"transport": transport, "value": float(tensor[0]), "gathered": float(gathered[0][0]), "objects": objects,
            "calls": [[row.op, row.bytes, row.dtype] for row in rows]}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--limit", type=float, default=285.0, help="seconds for all parts")
    parser.add_argument("--only", default="", help="parts, joined by commas")
    parser.add_argument("--part", choices=("facts", "methods", "methods-large", "staging", "nccl"))
    asked = parser.parse_args()
    if asked.part is None:
        return carry_out(asked)
    made = {"facts": facts, "staging": staging, "nccl": nccl}.get(asked.part, methods)(asked)
    text = json.dumps(made, indent=1)
    (Path(asked.out) / f"part-{asked.part}.json").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
