"""Keep what `profile_gpu.py` wrote as the reference in results/profile-gpu/: a summary, few profiles, README.md.

    PYTHONPATH=. python benchmarks/profile_gpu_reference.py FOLDER [FOLDER …]

Each folder is a run. Of a part that several have, the last one counts; the earlier one's times stay in the tables that
show runs apart.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.profile_gpu import figures_of
from ipcbench.profile.records import FILE
from ipcbench.render.table import Table, make_columns, number
from ipcbench.render.text import markdown_table
from ipcbench.util.units import format_bytes

REFERENCE = Path(__file__).resolve().parents[1] / "results" / "profile-gpu"
KEPT = ("none-small", "split-shm")
"""Runs of which the whole profile is kept."""
_APART = ("methods", "split", "tp2")
"""Beginnings of the names of parts of which an earlier run's times are kept, too."""
_DROPPED = ("properties", "topology", "nvidia_smi")

_TEXT = """# Runs on a GPU

`benchmarks/profile_gpu.py` measured this on an {gpu} with driver {driver}, torch {torch} and CUDA {cuda},
in a virtual machine with {cpus} cores ({cpu_model}), {os} and {python}. Each rank has
one thread.

Figures are medians with their 95 % intervals. `summary.json` has all of them, `bandwidth.json` those of the copies, and
the folders the profiles of two runs of `ipcbench profile`: as they were written, but without the commit and with the
kernel's version cut short. `profile_gpu_reference.py` wrote all this.

The script ran {runs} times, in machines of this one kind:

{sources}

Between runs the project changed, too: spans record events at less cost since run 1.

Processes differ: recording an event took {spread} times as long in one process as in another of the same run, and
starting a kernel and waiting took longer there, too. So ratios are of steps that took turns in one process. Times of
different processes or runs show no order.

## Three ways to time blocks

{model} in {dtype}; medians over rounds of a prompt and {tokens} tokens. *Events*: CUDA events around each block, read
after the step, as `ipcbench profile` does. *Synchronized*: the program waits for the device before and after each
block. Both are given by how much longer they are than the plain step beside them. An interval that includes 0 shows no
difference.

{methods}

In the prompt of 8 × 2,048 tokens the GPU has more to do than the program: both ways cost something, and events clearly
less, since the program can work ahead. In the other steps the GPU waits for the program. There the intervals of the two
ways overlap, so neither is shown to be cheaper.

What a call takes of the program, µs, measured after these steps in the same processes of the last run:

{cost}

## Steps, and what the GPU does in them

Kernels are what the GPU computes in a step; the rest of the time it waits for the program. A step of which kernels are
a small part is bound by launches: each event that the program records makes it longer. A block's time includes such
waiting: the embedding's is nearly nothing else. qwen3-small has a prompt of {small} more, qwen3-0.6b
of {large}; each step is repeated {steps_count} times each way. An own cost whose interval includes 0 is not resolved.

{steps}

## Copies, GB/s

*Device to device* counts each byte as read and as written, the others count it once. Within the device, copies of 1 MiB
and 16 MiB take about equally long: what is seen there is their start, not the memory. They fit into the L2 cache of
{l2}, too. The memory's peak is {peak} GB/s. Peer to peer and NVLink need 2 GPUs.

{copies}

## Staging: to the host and back

Pinned memory comes from torch's pool; pageable memory is allocated for each copy, as torch does.

{staging}

## Several ranks

qwen3-small in float32, a prompt of 128 tokens and 4 more, 5 steps each way. *Split*: the client is on the processor,
the server on the GPU. *tp2*: both ranks share the GPU, so nothing follows for ranks with a GPU each. Times of a step
are those of plain steps; wait and transfer are of rank 1 in decoding. The error is that of the logits against
one process.

{ranks}

In one process, calls of one rank passed through NCCL and were recorded: {nccl}.
"""


def tables(kept: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> dict[str, str]:
    """Return the text and tables of README.md by name: from what a reference's files say."""
    found = {name: part.get("figures") or {} for name, part in kept["parts"].items()}
    each_run = sorted([*kept["earlier"], *({"name": name, **part} for name, part in kept["parts"].items())],
                      key=lambda part: (part["name"], part["run"]))  # fmt: skip
    facts, methods = found["facts"], found["methods"]
    gpu, small, large = facts["gpus"][0], found["none-small"]["setting"], found["none-large"]["setting"]
    heads = {
        "methods": ["run", "phase", "batch × tokens", "plain, ms", "events, % more", "synchronized, % more",
                    "events' root span of its step"],
        "cost": ["call", *(f"{found[name]['batch']} × {found[name]['seq']:,}" for name in _METHODS)],
        "steps": ["model", "phase", "step, ms", "with spans", "kernels", "embedding", "its kernels",
                  "own cost of the spans, %", "covered, %", "GPU memory, peak, MB"],
        "staging": ["size", "pinned, µs", "pageable, µs", "pageable / pinned"],
        "ranks": ["ranks", "run", "prompt, ms", "token, ms", "wait, ms", "transfer, ms", "error of logits"],
    }  # fmt: skip
    rows = {"methods": _methods(each_run), "cost": _cost(found), "steps": _steps(found), "staging": _staging(found),
            "ranks": _ranks(each_run)}  # fmt: skip
    made = {name: markdown_table(Table("", make_columns(heads[name]), tuple(rows[name]))) for name in heads}
    sizes = sorted({case["values"]["bytes"] for case in cases})
    table = make_columns(["copy", *map(format_bytes, sizes)])
    records = [found[name]["record_by_spans_ns"][1] for name in _METHODS]
    return {
        **made,
        "copies": markdown_table(Table("", table, tuple(_copies(cases, sizes)))), "sources": _sources(kept),
        "runs": str(max(part["run"] for part in each_run)), "spread": number(max(records) / min(records)),
        "gpu": gpu["name"], "driver": facts["driver"], "torch": facts["torch"], "cuda": facts["cuda"],
        "cpus": str(facts["cpus"]), "l2": format_bytes(gpu["l2_bytes"]), "tokens": str(methods["tokens"]),
        "peak": number(gpu["peak_bytes_per_s"], 1e9), "model": methods["model"], "dtype": methods["dtype"],
        "small": _tokens(small), "large": _tokens(large), "steps_count": str(small["steps"]),
        "nccl": ", ".join(dict.fromkeys(call[0] for call in found["nccl"]["calls"])),
        **{name: machine[name] for name in ("cpu_model", "os", "python")},
    }  # fmt: skip


_METHODS = ("methods", "methods-large")
_COSTS = {
    "record_ns": "to record an event, as torch's own method does",
    "record_by_spans_ns": "to record an event, as spans do",
    "kernel_ns": "to start the smallest kernel",
    "synchronize_ns": "to wait for a device that has nothing to do",
}


def _sources(kept: Mapping[str, Any]) -> str:
    runs: dict[int, list[str]] = {}
    for name, part in kept["parts"].items():
        runs.setdefault(part["run"], []).append(name)
    lines = [f"- run {run}: {', '.join(names)}" for run, names in sorted(runs.items())]
    both = [part["name"] for part in kept["earlier"]]
    return ";\n".join(lines) + f".\n\nOf {', '.join(both)}, the tables show the earlier times, too." * bool(both)


def _tokens(setting: Mapping[str, Any]) -> str:
    return f"{setting['seq']} tokens and {setting['tokens']}"


def _cost(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, words in _COSTS.items():
        yield words, *(_told(found[method][name], 1e3) for method in _METHODS)


def _told(values: Sequence[float] | None, by: float = 1.0) -> str:
    """Return a figure with its interval, if it has one."""
    if not values:
        return "–"
    low, middle, high = values if len(values) == 3 else (values[0],) * 3
    shown = number(middle, by)
    return shown if low == high else f"{shown} [{number(low, by)}, {number(high, by)}]"


def _methods(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for run, found in ((part["run"], part["figures"]) for part in parts if part["name"] in _METHODS):
        for phase in ("prefill", "decode"):
            each = found[phase]
            more = [[ratio - 1 for ratio in each[f"{way}_wall_of_plain_ratio"]] for way in ("events", "synchronized")]
            work = f"{found.get('batch', 1)} × {found['seq'] if phase == 'prefill' else 1:,}"
            root = _told(each["events_root_of_own_wall_ratio"])
            yield str(run), phase, work, _told(each["plain_wall_ns"], 1e6), *(_told(part, 1e-2) for part in more), root


def _steps(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name in ("none-small", "none-large"):
        for phase in ("prefill", "decode"):
            each, memory = found[name][phase], found[name]["memory"][0]
            rank = each["ranks"]["0"]
            yield (
                f"{found[name]['setting']['model']}, {found[name]['setting']['dtype']}", phase,
                _told(each["latency_ns"], 1e6), number(rank["wall_ns"], 1e6), number(rank["kernels_ns"], 1e6),
                number(rank["embedding_ns"], 1e6), number(rank["embedding_kernels_ns"], 1e6),
                _told(each["spans_cost_ratio"], 1e-2), number(rank["coverage_ratio"], 1e-2),
                number(memory["peak_allocated_bytes"], 1e6),
            )  # fmt: skip


def _copies(cases: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for what in dict.fromkeys(case["values"]["what"] for case in cases):
        rates = {c["values"]["bytes"]: c["figures"]["bytes_per_s"] for c in cases if c["values"]["what"] == what}
        yield what, *(number(rates[size]["estimate"], 1e9) if size in rates else "–" for size in sizes)


def _staging(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for size, each in found["staging"].items():
        times = [_told(each[name], 1e3) for name in ("pinned_ns", "pageable_ns")]
        yield format_bytes(int(size)), *times, _told(each["pageable_of_pinned_ratio"])


def _ranks(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for part in (part for part in parts if part["name"].startswith(("split", "tp2"))):
        found = part["figures"]
        own = found["decode"]["ranks"]["1"]
        times = [number(own[f"communication_{what}_ns"], 1e6) for what in ("wait", "transfer")]
        steps = [_told(found[phase]["latency_ns"], 1e6) for phase in ("prefill", "decode")]
        error = f"{found['relative_error']:.1e}"
        yield part["name"].replace("-", " "), str(part["run"]), *steps, *times, error


def readme(folder: Path = REFERENCE) -> str:
    """Return README.md as it follows from the files beside it."""
    kept = json.loads((folder / "summary.json").read_text())
    cases = json.loads((folder / "bandwidth.json").read_text())["cases"]
    machine = json.loads((folder / KEPT[0] / "profile.json").read_text())["profile"]["machine"]
    return _TEXT.format(**tables(kept, cases, machine))


def keep(folders: Sequence[Path]) -> None:
    """Write the reference."""
    parts: dict[str, Any] = {}
    earlier: list[dict[str, Any]] = []
    gpus: set[str] = set()
    for run, folder in enumerate(folders, 1):
        for name, part in json.loads((folder / "summary.json").read_text())["parts"].items():
            if part["status"] == "done":
                gpus |= {gpu["name"] for gpu in part.get("figures", {}).get("gpus", ())}
                if name in parts and name.startswith(_APART):
                    earlier.append({"name": name, **parts[name]})
                parts[name] = {"run": run, **{key: part[key] for key in ("status", "took_s", "figures") if key in part}}
    if len(gpus) != 1:
        sys.exit(f"one GPU is needed, and its facts; these runs are of {', '.join(sorted(gpus)) or 'none'}")
    for run, folder in enumerate(folders, 1):
        with tarfile.open(folder / "profiles.tar.gz") as archive, tempfile.TemporaryDirectory() as unpacked:
            archive.extractall(unpacked, filter="data")
            for name in (name for name, part in parts.items() if part["run"] == run):
                _take(Path(unpacked) / "profiles" / name, parts[name])
    facts = parts["facts"]["figures"]
    if smi := facts.get("nvidia_smi"):
        facts["driver"] = smi.splitlines()[1].split(", ")[1]
    for name in _DROPPED:
        facts.pop(name, None)
    (REFERENCE / "summary.json").write_text(json.dumps({"parts": parts, "earlier": earlier}, indent=1) + "\n")
    (REFERENCE / "README.md").write_text(readme())


def _take(folder: Path, part: dict[str, Any]) -> None:
    """Take the figures of a part from its profile, and the profile or the copies if they are kept."""
    if (folder / FILE).is_file():
        part["figures"] = figures_of(folder)
    if folder.name in KEPT:
        stored = json.loads((folder / FILE).read_text())
        machine = stored["profile"]["machine"]
        machine["kernel"] = re.sub(r"(\d+\.\d+\.\d+)\S*", r"\1", machine["kernel"])
        stored["profile"]["versions"].pop("commit", None)
        target = REFERENCE / folder.name / FILE
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(stored, separators=(",", ":"), ensure_ascii=False) + "\n")
    for file in folder.glob("bandwidth_test*.json"):
        cases = [case for case in json.loads(file.read_text())["cases"] if case["status"] == "measured"]
        cases = [case for case in cases if case["values"]["transport"] == "cuda"]
        REFERENCE.mkdir(parents=True, exist_ok=True)
        (REFERENCE / "bandwidth.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    keep([Path(name) for name in sys.argv[1:]])
