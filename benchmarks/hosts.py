"""Do channels between hosts carry as much as the plainest program does over the same link?

    python benchmarks/hosts.py [--rtt 10ms …] [--rounds N] [--size 1MiB]

Two emulated hosts; in each round, one after another: a raw stream (one TCP connection, `sendall` of a message,
`recv_into` a buffer), a plain PUSH and PULL of pyzmq, plain `Bcast`s of the length and of the message, and the
saturated windows of `ipcbench run --hosts a,b` over tcp, zmq-tcp, zmq-tcp-insecure and mpi-buffer. A line for each
round trip and transport: MB/s, and the quotient round by round, median and range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import IO

from ipcbench.hosts.launchers import SHELL_VARIABLE, hydra_here
from ipcbench.hosts.simulated.cluster import Cluster, simulated_hosts
from ipcbench.hosts.simulated.links import Link
from ipcbench.util.units import parse_bytes, parse_duration_s

SECONDS = 1.0
WARM_UP_S = 0.5
RAW = """
import os, socket, sys, threading, time

threading.Thread(target=lambda: sys.stdin.read() or os._exit(0), daemon=True).start()  # at the end of this measurement
kind, role, size, warm_up_s, seconds = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
size, message = int(size), bytearray(int(size))
if kind == "raw":
    if role == "reads":
        with socket.create_server(("0.0.0.0", 7000)) as listener:
            print("ready", flush=True)
            connection, _ = listener.accept()
        buffer = memoryview(bytearray(size))
        read = lambda: connection.recv_into(buffer) or sys.exit("the program that writes has ended early")
    else:
        connection = socket.create_connection(("b", 7000))
        write = lambda: connection.sendall(message)
else:
    import zmq
    connection = zmq.Context().socket(zmq.PULL if role == "reads" else zmq.PUSH)
    connection.set_hwm(64)  # the depth of the channels
    if role == "reads":
        connection.bind("tcp://0.0.0.0:7000")
        print("ready", flush=True)
        read = lambda: len(connection.recv(copy=False))
    else:
        connection.connect("tcp://b:7000")
        write = lambda: connection.send(message)  # by a copy, as whoever writes to the memory again must
count, first, begun = 0, None, None
while first is None or time.monotonic() - first < warm_up_s + seconds:
    if role == "writes":
        write()
        continue
    count += read()
    if first is None:
        first = time.monotonic()
    elif begun is None and time.monotonic() - first > warm_up_s:
        begun, count = time.monotonic(), 0
if role == "reads":
    print(count / (time.monotonic() - begun), flush=True)
os._exit(0)
"""
BCAST = """
import sys, time
from array import array
from mpi4py import MPI

size, warm_up_s, seconds = int(sys.argv[1]), *map(float, sys.argv[2:])
comm, memory, length = MPI.COMM_WORLD, bytearray(size), array("q", [size])
count, begun, first = 0, None, time.monotonic()
while comm.Bcast(length, 0) or length[0]:
    comm.Bcast(memory, 0)
    count += size
    if begun is None and time.monotonic() - first > warm_up_s:
        begun, count = time.monotonic(), 0
    if comm.rank == 0 and time.monotonic() - first > warm_up_s + seconds:
        length[0] = 0
if comm.rank == 1:
    print(count / (time.monotonic() - begun), flush=True)
"""
REFERENCES = {"tcp": "raw", "zmq-tcp-insecure": "zmq", "zmq-tcp": "zmq", "mpi-buffer": "Bcast"}
"""Transport → the plain program over the same library."""


def bcast_bytes_per_s(cluster: Cluster, size: int) -> float:
    """Return what broadcasts carry from host a to host b."""
    program = [sys.executable, "-c", BCAST, str(size), str(WARM_UP_S), str(SECONDS)]
    options = ["-launcher", "manual", "-localhost", cluster.addresses[0], "-hosts", ",".join(cluster.addresses)]
    starts = cluster.command([hydra_here(), *options, "-n", "2", *program], "a")
    with ExitStack() as ended:
        mpiexec = ended.enter_context(subprocess.Popen(starts, stdout=subprocess.PIPE, text=True))
        ended.callback(mpiexec.kill)
        assert mpiexec.stdout is not None
        lines = iter(mpiexec.stdout.readline, "HYDRA_LAUNCH_END\n")
        proxies = [line.split()[1:] for line in lines if line.startswith("HYDRA_LAUNCH:")]
        for host, proxy in zip(cluster.names, proxies, strict=True):
            ended.enter_context(subprocess.Popen(cluster.command(proxy, host)))
        return float(mpiexec.stdout.readline())


def plain_bytes_per_s(cluster: Cluster, kind: str, size: int) -> float:
    """Return what a plain program carries from host a to host b."""
    if kind == "Bcast":
        return bcast_bytes_per_s(cluster, size)
    command, times = [sys.executable, "-c", RAW, kind], [str(size), str(WARM_UP_S), str(SECONDS)]
    with ExitStack() as ended:

        def start(role: str, host: str) -> IO[str]:
            words = cluster.command([*command, role, *times], host)
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            ended.enter_context(process)  # which closes its input, and waits until it ends
            return process.stdout

        reads = start("reads", "b")
        reads.readline()  # it listens
        start("writes", "a")
        return float(reads.readline())


def channels_bytes_per_s(cluster: Cluster, size: int) -> dict[str, float]:
    """Return what the transports of ipcbench carry from host a to host b."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--backends", ",".join(REFERENCES), "--sizes", str(size), "--payload", "bytes", "--codec", "raw"]
        options += ["--mode", "saturate", "--readers", "1", "--rounds", "1"]
        options += ["--window", f"{SECONDS}s", "--warmup", f"{WARM_UP_S}s"]
        command = [sys.executable, "-m", "ipcbench", "run", "--hosts", "a,b", *options, "--look", "no", "-q"]
        variables = {**os.environ, SHELL_VARIABLE: str(cluster.remote_shell)}
        done = subprocess.run(
            cluster.command([*command, "--out", f"{folder}/run"]),
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        trials = map(json.loads, Path(folder, "run", "trials.jsonl").read_text().splitlines())
        return {
            trial["spec"]["backend"]: size * trial["throughput_per_s"]
            for trial in trials
            if trial["status"] == "ok" and not trial["spec"].get("twin")
        }


def main() -> None:
    """Print a line for each round trip and transport."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", nargs="+", default=["0ms", "10ms"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="1MiB")
    options = parser.parse_args()
    size = parse_bytes(options.size)
    for rtt in options.rtt:
        rates: list[dict[str, float]] = []
        with simulated_hosts(2, Link(delay_s=parse_duration_s(rtt, "--rtt", or_zero=True) / 2)) as cluster:
            for _ in range(options.rounds):
                plain = {kind: plain_bytes_per_s(cluster, kind, size) for kind in dict.fromkeys(REFERENCES.values())}
                rates.append({**plain, **channels_bytes_per_s(cluster, size)})
        for name, reference in REFERENCES.items():
            ratios = sorted(each[name] / each[reference] for each in rates if name in each)
            mb_per_s = [median(each[which] for each in rates if which in each) / 1e6 for which in (name, reference)]
            print(
                f"rtt {rtt}, {name}: {mb_per_s[0]:.0f} MB/s, {reference} {mb_per_s[1]:.0f} MB/s, "
                f"quotient {median(ratios):.2f} [{ratios[0]:.2f}–{ratios[-1]:.2f}]"
            )


if __name__ == "__main__":
    main()
