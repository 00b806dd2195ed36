"""Are latencies between hosts right whose clocks are wrong by a known time, over links of known delay?

    python benchmarks/host_clocks.py [--rounds N]

Two emulated hosts for each pair of a clock's offset and a link. A one-way latency is right if the offset by which it
was corrected is, within its printed error, the true one; or it is refused. Paced round trips are set beside those of a
plain program that sends as many bytes over a TCP connection at the same rate and counts from when they were due, before
and after each run. A channel does more than that program, whatever the link: so what a link adds to the round trips of
either is set beside the other, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ipcbench.hosts.launchers import SHELL_VARIABLE
from ipcbench.hosts.simulated.cluster import Cluster, simulated_hosts
from ipcbench.hosts.simulated.links import Link

MS = 10**6
OFFSETS_NS = (0, 3 * MS, -3 * MS, 100_000 * MS)
LINKS_NS = ((0, 0), (5 * MS, 5 * MS), (5 * MS, 1 * MS))
"""Delay from a to b, and from b to a."""
RATE_PER_S, SIZE = 200, 521
ECHO = """
import socket, sys, threading, time

role, rate, size = sys.argv[1], *map(int, sys.argv[2:])
if role == "echoes":
    with socket.create_server(("0.0.0.0", 7000)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
else:
    connection = socket.create_connection(("b", 7000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if role == "echoes":
    while data := connection.recv(size, socket.MSG_WAITALL):
        connection.sendall(data)
else:
    count, trips = 2 * rate, []
    begun = time.monotonic() + 0.1

    def listen():
        for number in range(count):
            connection.recv(size, socket.MSG_WAITALL)
            trips.append(time.monotonic() - begun - number / rate)

    heard = threading.Thread(target=listen)
    heard.start()
    for number in range(count):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        connection.sendall(bytes(size))
    heard.join()
    print(1e9 * sorted(trips)[count // 2])
"""


def plain_trip_ns(cluster: Cluster) -> float:
    """Return the median round trip of the plain program."""
    command = [sys.executable, "-c", ECHO]
    numbers = [str(RATE_PER_S), str(SIZE)]
    echoes = subprocess.Popen(cluster.command([*command, "echoes", *numbers], "b"), stdout=subprocess.PIPE)
    assert echoes.stdout is not None
    echoes.stdout.readline()
    trip_ns = float(subprocess.check_output(cluster.command([*command, "asks", *numbers], "a")))
    echoes.communicate()
    return trip_ns


def trials_of(cluster: Cluster, rounds: int) -> list[dict[str, Any]]:
    """Return the trials of a run between two hosts."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--backends", "tcp", "--payload", "bytes", "--codec", "raw", "--sizes", str(SIZE), "--readers", "1"]
        options += ["--mode", "paced,pingpong", "--rate", f"{RATE_PER_S}/s", "--rounds", str(rounds), "--look", "no"]
        options += ["--control", "no", "--window", "500ms", "-q", "--out", f"{folder}/run"]
        command = [sys.executable, "-m", "ipcbench", "run", "--hosts", "a,b", *options]
        variables = {**os.environ, SHELL_VARIABLE: str(cluster.remote_shell)}
        done = subprocess.run(cluster.command(command), env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return [json.loads(line) for line in Path(folder, "run", "trials.jsonl").read_text().splitlines()]


def main() -> None:
    """Print a line for each clock and link, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    right = wrong = refused = 0
    ratios = []
    trips: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for delays_ns in LINKS_NS:
        for offset_ns in OFFSETS_NS:
            links = [*(Link(delay_s=delay_ns / 1e9) for delay_ns in delays_ns), Link()]
            with simulated_hosts(2, links, clock_offsets_ns=(0, offset_ns)) as cluster:
                plain = [plain_trip_ns(cluster)]
                trials = trials_of(cluster, options.rounds)
                plain.append(plain_trip_ns(cluster))
            said = []
            for conditions, latency in (
                (trial["conditions"], trial["endpoints"][1]["latency"])
                for trial in trials
                if trial["spec"]["mode"] == "paced"
            ):
                error_ns = conditions["clock_error_ns"]
                off_ns = conditions["clock_offsets_ns"][1] - offset_ns
                refused += latency is None
                right += latency is not None and abs(off_ns) <= error_ns
                wrong += latency is not None and abs(off_ns) > error_ns
                said.append("refused" if latency is None else f"{off_ns / 1e3:+.0f} ± {error_ns / 1e3:.0f} µs")
            trip_ns = median(
                trial["endpoints"][0]["round_trip"]["p50_ns"] for trial in trials if trial["spec"]["mode"] == "pingpong"
            )
            ratios.append(trip_ns / (sum(plain) / 2))
            trips.setdefault(delays_ns, []).append((trip_ns, sum(plain) / 2))
            there, back = (delay_ns / MS for delay_ns in delays_ns)
            print(f"link {there:g} + {back:g} ms, clock {offset_ns / MS:+g} ms: offset {', '.join(said)};", end=" ")
            before, after = (f"{each / MS:.3f}" for each in plain)
            print(f"paced round trip {trip_ns / MS:.3f} ms, plain {before} and {after} ms", flush=True)
    print(f"one-way: {right} right, {wrong} wrong, {refused} refused;", end=" ")
    print(f"paced round trip / plain: {min(ratios):.3f} to {max(ratios):.3f}, median {median(ratios):.3f}")
    without, *others = ([median(side) for side in zip(*pairs, strict=True)] for pairs in trips.values())
    for (there_ns, back_ns), trip in zip(LINKS_NS[1:], others, strict=True):
        added, plain_added = (with_link - at_0 for with_link, at_0 in zip(trip, without, strict=True))
        print(f"link {there_ns / MS:g} + {back_ns / MS:g} ms adds {added / MS:.3f} ms to a paced round trip,", end=" ")
        print(f"{plain_added / MS:.3f} ms to a plain one: {added / plain_added:.3f}")


if __name__ == "__main__":
    main()
