"""Are the logits right for every way to divide a model over every transport?

    python benchmarks/profile_product.py [--model NAME] [PLAN…]

Prints the largest difference from one process, and the time, for each; ends with 1 if one is too large or failed. The
same processes carry out all cases of a kind: ranks that MPI starts import torch one by one, which takes longer than the
case itself.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from ipcbench.errors import IpcbenchError
from ipcbench.profile.records import Setting
from ipcbench.profile.sweep.models import Pool
from ipcbench.registry import get_backend, names, status

PLANS = ("tp2", "tp4", "pp2", "pp4", "tp2pp2", "split")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-tiny")
    parser.add_argument("plans", nargs="*", default=PLANS)
    given = parser.parse_args()
    base = Setting(model=given.model, seq=32, tokens=3, batch=2, steps=1, warmup=0)
    usable = [name for name in names() if status(name).available]
    transports = ["gloo", *(name for name in usable if get_backend(name).capabilities.launcher != "inline")]
    failed = 0
    with Pool(given.plans) as pool:
        for plan in given.plans:
            for transport in transports:
                began_s = time.monotonic()
                try:
                    found = pool.run(replace(base, parallel=plan, transport=transport), ("plain",)).agreement
                    assert found is not None
                    text, is_right = f"{found.relative_error:.1e}", True
                except IpcbenchError as error:
                    text, is_right = str(error), False
                failed += not is_right
                took = f"{time.monotonic() - began_s:5.1f} s"
                print(f"{plan:8} {transport:18} {'right' if is_right else 'WRONG'}  {text}  {took}", flush=True)
    return min(1, failed)


if __name__ == "__main__":
    raise SystemExit(main())
