"""What a round costs beside its windows, by kind of trial and by backend.

    python benchmarks/round_costs.py [ARGUMENT OF ipcbench run]...

It carries out `ipcbench run` in this process, with a timer around each step of the coordinator, and prints means in ms.
The first look is left out. What overlaps is counted where the coordinator waits.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipcbench.__main__ import main as ipcbench_main
from ipcbench.harness.group import Group
from ipcbench.harness.sweep import _Run
from ipcbench.harness.trial import Trial
from ipcbench.results.store import RunWriter

STEPS = {
    "open": "opening",
    "opened": "opening",
    "warm_up": "warm-up, probe",
    "turn": "turns",
    "finish": "decoding, end",
    "close": "closing",
    "closed": "closing",
    "release": "closing",
    "outcome": "record",
}
COLUMNS = ("window", "around turns", "warm-up, probe", "opening", "decoding, end", "closing", "record", "storing")
spent_s: defaultdict[object, Counter[str]] = defaultdict(Counter)
trials: Counter[object] = Counter()
rounds: Counter[str] = Counter()


def timed(owner: Any, name: str, note: Callable[[Any, tuple[Any, ...], float], None]) -> None:
    """Have `note(self, arguments, seconds)` called after each call of a method."""
    method = getattr(owner, name)

    def call(self: Any, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(self, *arguments)
        finally:
            note(self, arguments, time.perf_counter() - start)

    setattr(owner, name, call)


def kinds(spec: Any) -> tuple[object, ...]:
    """Return what a trial's times are added to: its kind and its backend; nothing for a first look."""
    return () if spec.look else ((spec.mode + ", in one piece" * spec.tail,), spec.backend)


def note_step(step: str, name: str) -> Callable[[Any, tuple[Any, ...], float], None]:
    """Return what adds the time of a step to the trial's kinds."""

    def note(trial: Trial, _: tuple[Any, ...], seconds: float) -> None:
        for kind in kinds(trial.spec):
            spent_s[kind][step] += seconds
            if name == "outcome":
                trials[kind] += 1
                spent_s[kind]["window"] += trial.spec.window_s

    return note


def note_storing(_: RunWriter, arguments: tuple[Any, ...], seconds: float) -> None:
    for kind in kinds(arguments[0].spec):
        spent_s[kind]["storing"] += seconds


def note_round(name: str) -> Callable[[Any, tuple[Any, ...], float], None]:
    """Return what adds up a step of whole rounds."""

    def note(*arguments: Any) -> None:
        rounds[name] += arguments[-1]

    return note


def main() -> int:
    """Run, and print the table."""
    for name, step in STEPS.items():
        timed(Trial, name, note_step(step, name))
    timed(RunWriter, "append", note_storing)
    timed(_Run, "_start_groups", note_round("to start groups"))
    timed(Group, "end", note_round("to end groups"))
    timed(_Run, "_round", lambda *_: rounds.update(["rounds"]))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="round-costs-") as folder:
        sys.argv = ["ipcbench", "run", "--quiet", *sys.argv[1:], "--out", str(Path(folder) / "run")]
        code = ipcbench_main()
    print(f"{time.perf_counter() - start:.1f} s in all; means in ms:\n")
    print(f"{'':24}" + "".join(f"{column:>16}" for column in COLUMNS) + f"{'trials':>8}")
    for kind, count in trials.items():
        times = spent_s[kind]
        times["around turns"] = times["turns"] - times["window"]
        name = kind if isinstance(kind, str) else kind[0]  # type: ignore[index]
        print(f"{name:24}" + "".join(f"{1e3 * times[column] / count:16.1f}" for column in COLUMNS) + f"{count:8}")
    print("".join(f"\n{rounds[name] / rounds['rounds']:.2f} s a round {name}" for name in rounds if name != "rounds"))
    return int(code or 0)


if __name__ == "__main__":
    raise SystemExit(main())
