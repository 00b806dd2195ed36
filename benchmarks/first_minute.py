"""When a run shows what: the first look, the last screen; and how much of its time is measured.

    python benchmarks/first_minute.py [ARGUMENT OF ipcbench run]...

It starts `ipcbench run` on a terminal of its own, notes when which text appears there, and reads the stored run. The
share is that of the windows in which messages of published figures are sent, as they were asked for, and of decoding,
as long as the reader that took longest; so rather too small than too large. Warm-up, starts, probes, silences and what
the analysis takes are the rest.
"""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import sys
import tempfile
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

ROWS, COLUMNS = 50, 100
MARKS = {"first look": b"first look", "last screen": b"all figures, report:"}
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


def timeline(arguments: list[str], folder: Path) -> tuple[dict[str, float], int]:
    """Run once; return mark → seconds after the start at which it appeared, and the exit code."""
    started = time.monotonic()
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-m", "ipcbench", "run", *arguments, "--out", str(folder)])
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    seen, appeared = b"", {}
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other side has closed
            break
        if not piece:
            break
        seen = (seen + _CONTROL.sub(b"", piece))[-20_000:]
        for mark, text in MARKS.items():
            if mark not in appeared and text in seen:
                appeared[mark] = time.monotonic() - started
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    appeared["end"] = time.monotonic() - started
    return appeared, code


def measured_s(trial: dict[str, Any]) -> float:
    """Return for how long messages of figures were under way in a stored trial."""
    decodes = [reader["decode"] for reader in trial["endpoints"] if reader["decode"]]
    return trial["spec"]["window_s"] + max((each["count"] * each["mean_ns"] / 1e9 for each in decodes), default=0.0)


def main() -> int:
    """Print the timeline and the share."""
    with tempfile.TemporaryDirectory(prefix="first-minute-") as scratch:
        folder = Path(scratch) / "run"
        appeared, code = timeline(sys.argv[1:], folder)
        lines = (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines() if folder.exists() else []
        windows_s = sum(measured_s(json.loads(line)) for line in lines)
    for mark, at_s in appeared.items():
        print(f"{at_s:8.1f} s  {mark}")
    print(f"{windows_s:8.1f} s  measured in {len(lines)} trials: {windows_s / appeared['end']:.0%} of the time")
    print("load: {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
