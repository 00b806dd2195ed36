"""Keep what `profile_gpu.py` wrote as the reference in results/profile-gpu/: a summary, few profiles, README.md.

    PYTHONPATH=. python benchmarks/profile_gpu_reference.py FOLDER [FOLDER …]

Of a part that several folders have, the last one counts.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipcbench.render.table import Table, make_columns, number
from ipcbench.render.text import markdown_table
from ipcbench.util.units import format_bytes

REFERENCE = Path(__file__).resolve().parents[1] / "results" / "profile-gpu"
KEPT = ("none-small", "split-shm")
"""Runs of which the whole profile is kept."""
_DROPPED = ("properties", "topology", "nvidia_smi")

_TEXT = """# A run on a GPU

`benchmarks/profile_gpu.py` measured this on one {gpu} (driver {driver}), torch {torch}, in a virtual machine
with {cpus} cores. Figures are medians with their 95 % intervals; `summary.json` has all of them, `bandwidth.json` those
of the copies, and the folders the profiles of two runs. `profile_gpu_reference.py` wrote this page from these files.

One run in one process a rank: the machine's own speed changed between processes by more than some intervals say. So
ratios are of steps that took turns in one process; times of different processes are not to be compared closely.

## Three ways to time blocks

{model} in {dtype}. *Events*: CUDA events around each block, read after the step, as `ipcbench profile` does.
*Synchronized*: the program waits for the device before and after each block. Both are given as a multiple of the plain
step beside them. An interval that includes 1 shows no difference from a plain step.

{methods}
{cost}
## Steps, and what the GPU does in them

Kernels are what the GPU computes in a step; the rest of the time it waits for the program. A step of which kernels are
a small part is bound by launches: each event that the program records makes it longer.

{steps}

## Copies, GB/s

*Device to device* counts each byte as read and as written, the others count it once. Sizes that fit into the device's
L2 cache ({l2}) do not show its memory, of which the peak is {peak} GB/s.

{copies}

## Staging: to the host and back

Pinned memory comes from torch's pool; pageable memory is allocated for each copy, as torch does.

{staging}

## Several ranks

qwen3-small in float32. *Split*: the client is on the processor, the server on the GPU. *tp2*: both ranks share the GPU,
so nothing follows for ranks with a GPU each. Times of a step are those of plain steps; wait and transfer are of rank 1
in decoding. The error is that of the logits against one process.

{ranks}
"""


def tables(parts: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the text and tables of README.md by name, from the parts of summary.json and the cases of a sweep."""
    found = {name: part.get("figures") or {} for name, part in parts.items()}
    gpu = found["facts"]["gpus"][0]
    methods = found["methods"]
    heads = {
        "methods": ["phase", "batch × tokens", "plain, ms", "events", "synchronized", "events' root span of its step"],
        "steps": ["run", "phase", "step, ms", "with spans", "kernels", "own cost of the spans, %", "covered, %",
                  "GPU memory, peak, MB"],
        "staging": ["size", "pinned, µs", "pageable, µs", "pageable / pinned"],
        "ranks": ["run", "prompt, ms", "token, ms", "wait, ms", "transfer, ms", "error of logits"],
    }  # fmt: skip
    rows = {"methods": _methods(found), "steps": _steps(found), "staging": _staging(found), "ranks": _ranks(found)}
    made = {name: markdown_table(Table("", make_columns(heads[name]), tuple(rows[name]))) for name in heads}
    sizes = sorted({case["values"]["bytes"] for case in cases})
    table = make_columns(["copy", *map(format_bytes, sizes)])
    cost = next((each for each in found.values() if "record_ns" in each), {})
    return {
        **made,
        "copies": markdown_table(Table("", table, tuple(_copies(cases, sizes)))),
        "cost": "".join(f"\n- {words}: {_told(cost[name], 1e3)} µs" for name, words in _COSTS.items() if cost) + "\n",
        "gpu": gpu["name"], "driver": found["facts"]["driver"], "torch": found["facts"]["torch"],
        "cpus": str(found["facts"]["cpus"]), "l2": format_bytes(gpu["l2_bytes"]),
        "peak": number(gpu["peak_bytes_per_s"], 1e9), "model": methods["model"], "dtype": methods["dtype"],
    }  # fmt: skip


_COSTS = {
    "record_ns": "to record an event, as torch's own method does",
    "record_by_spans_ns": "as spans do",
    "kernel_ns": "to start the smallest kernel",
    "synchronize_ns": "to wait for a device that has nothing to do",
}


def _told(values: Sequence[float] | None, by: float = 1.0) -> str:
    """Return a figure with its interval, if it has one."""
    if not values:
        return "–"
    low, middle, high = values if len(values) == 3 else (values[0],) * 3
    shown = number(middle, by)
    return shown if low == high else f"{shown} [{number(low, by)}, {number(high, by)}]"


def _methods(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name in ("methods", "methods-large"):
        for phase in ("prefill", "decode") if found.get(name) else ():
            each, batch = found[name][phase], found[name].get("batch", 1)
            ratios = [_told(each[f"{way}_wall_of_plain_ratio"]) for way in ("events", "synchronized")]
            work = f"{batch} × {found[name]['seq'] if phase == 'prefill' else 1}"
            root = _told(each["events_root_of_own_wall_ratio"])
            yield phase, work, _told(each["plain_wall_ns"], 1e6), *ratios, root


def _steps(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name in ("none-small", "none-large"):
        for phase in ("prefill", "decode"):
            each, memory = found[name][phase], found[name]["memory"][0]
            rank = each["ranks"]["0"]
            yield (
                f"{found[name]['setting']['model']}, {found[name]['setting']['dtype']}", phase,
                _told(each["latency_ns"], 1e6), number(rank["wall_ns"], 1e6), number(rank["kernels_ns"], 1e6),
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


def _ranks(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, each in found.items():
        if name.startswith(("split", "tp2")):
            own = each["decode"]["ranks"]["1"]
            parts = [number(own[f"communication_{part}_ns"], 1e6) for part in ("wait", "transfer")]
            steps = [_told(each[phase]["latency_ns"], 1e6) for phase in ("prefill", "decode")]
            yield name.replace("-", " "), *steps, *parts, f"{each['relative_error']:.1e}"


def readme(folder: Path = REFERENCE) -> str:
    """Return README.md as it follows from the files beside it."""
    parts = json.loads((folder / "summary.json").read_text())["parts"]
    cases = json.loads((folder / "bandwidth.json").read_text())["cases"]
    return _TEXT.format(**tables(parts, cases))


def keep(folders: Sequence[Path]) -> None:
    """Write the reference."""
    parts: dict[str, Any] = {}
    gpus: set[str] = set()
    for folder in folders:
        for name, part in json.loads((folder / "summary.json").read_text())["parts"].items():
            if part["status"] == "done":
                gpus |= {gpu["name"] for gpu in part.get("figures", {}).get("gpus", ())}
                parts[name] = {key: part[key] for key in ("status", "took_s", "figures") if key in part}
    if len(gpus) != 1:
        sys.exit(f"one GPU is needed, and its facts; these runs are of {', '.join(sorted(gpus)) or 'none'}")
    for folder in folders:
        with tarfile.open(folder / "profiles.tar.gz") as archive:
            for member in archive:
                _take(archive, member)
    facts = parts["facts"]["figures"]
    if smi := facts.get("nvidia_smi"):
        facts["driver"] = smi.splitlines()[1].split(", ")[1]
    for name in _DROPPED:
        facts.pop(name, None)
    (REFERENCE / "summary.json").write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    (REFERENCE / "README.md").write_text(readme())


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    _, name, file = member.name.rsplit("/", 2) if member.name.count("/") >= 2 else ("", "", "")
    source = archive.extractfile(member) if file else None
    if source is None:
        return
    if name in KEPT and file == "profile.json":
        stored = json.loads(source.read())
        machine = stored["profile"]["machine"]
        machine["kernel"] = re.sub(r"(\d+\.\d+\.\d+)\S*", r"\1", machine["kernel"])
        stored["profile"]["versions"].pop("commit", None)
        target = REFERENCE / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(stored, separators=(",", ":"), ensure_ascii=False) + "\n")
    elif file.startswith("bandwidth_test"):
        cases = [case for case in json.loads(source.read())["cases"] if case["status"] == "measured"]
        cases = [case for case in cases if case["values"]["transport"] == "cuda"]
        REFERENCE.mkdir(parents=True, exist_ok=True)
        (REFERENCE / "bandwidth.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    keep([Path(name) for name in sys.argv[1:]])
