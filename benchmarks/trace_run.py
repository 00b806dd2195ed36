"""What `ipcbench trace run` costs programs that nobody changed: their own p50, with and without it, by turns.

    python benchmarks/trace_run.py [--turns 15] [--program zerorpc,aiozmq,jupyter,pool]

Each program times its own round trips and prints their median. In each turn it runs once plainly and once recorded, in
alternating order. The figure is the median over the turns of the ratio recorded / plain, with the 95 % interval of the
signs; beside it stand the medians, and the noise: how far two plain runs that follow each other are apart.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

TIMED = """
import time
from statistics import median
times = []

def timed(call, *arguments):
    begun = time.perf_counter_ns()
    result = call(*arguments)
    times.append(time.perf_counter_ns() - begun)
    return result
"""

PROGRAMS = {
    "zerorpc": """
import gevent, socket, zerorpc
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

class Service:
    def add(self, a, b):
        return a + b

server = zerorpc.Server(Service())
server.bind(f"tcp://127.0.0.1:{port}")
gevent.spawn(server.run)
client = zerorpc.Client()
client.connect(f"tcp://127.0.0.1:{port}")
for number in range(600):
    timed(client.add, number, 1)
client.close()
server.close()
""",
    "aiozmq": """
import asyncio, aiozmq, zmq

async def main():
    router = await aiozmq.create_zmq_stream(zmq.ROUTER, bind="tcp://127.0.0.1:*")
    dealer = await aiozmq.create_zmq_stream(zmq.DEALER, connect=list(router.transport.bindings())[0])
    for number in range(2000):
        begun = time.perf_counter_ns()
        dealer.write([b"%d" % number])
        router.write(await router.read())
        await dealer.read()
        times.append(time.perf_counter_ns() - begun)

asyncio.run(main())
""",
    "jupyter": """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
for _ in range(60):
    timed(client.execute_interactive, "None")
client.stop_channels()
manager.shutdown_kernel(now=True)
""",
    "pool": """
import multiprocessing
def double(number):
    return 2 * number

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for number in range(2000):
            timed(pool.apply, double, (number,))
""",
}


def p50_us(program: Path, recorded: bool) -> float:
    """Run a program once, and return the median of its round trips."""
    with tempfile.TemporaryDirectory() as folder:
        before = [sys.executable, "-m", "ipcbench", "trace", "run", "--out", f"{folder}/trace", "--"] * recorded
        done = subprocess.run([*before, sys.executable, str(program)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1]) / 1e3


def sign_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a median, from the signs alone."""
    ordered, count = sorted(values), len(values)
    below = 0
    while 2 * sum(math.comb(count, each) for each in range(below + 1)) / 2**count <= 0.05:
        below += 1
    return ordered[max(0, below - 1)], ordered[min(count - 1, count - below)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--program", default=",".join(PROGRAMS))
    arguments = parser.parse_args()
    print(f"{'':10}{'plain µs':>10}{'recorded µs':>13}{'ratio':>8}   95 % interval   two plain runs")
    for name in arguments.program.split(","):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, f"{name}_program.py")
            program.write_text(f"{TIMED}{PROGRAMS[name]}\nif times:\n    print(median(times))\n")
            p50_us(program, recorded=False)
            pairs = []
            for turn in range(arguments.turns):
                order = (False, True) if turn % 2 else (True, False)
                figures = {recorded: p50_us(program, recorded) for recorded in order}
                pairs.append((figures[False], figures[True]))
        ratios = [recorded / plain for plain, recorded in pairs]
        plains = [plain for plain, _ in pairs]
        noise = median(abs(math.log(after / before)) for before, after in pairwise(plains))
        low, high = sign_interval(ratios)
        medians = median(plains), median(recorded for _, recorded in pairs)
        print(f"{name:10}{medians[0]:10.1f}{medians[1]:13.1f}{median(ratios):8.3f}   {low:.3f} to {high:.3f}"
              f"   ± {100 * noise:.1f} %", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
