"""Ranks of a model for tests: forked processes with a process group of torch."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from ipcbench.profile.model.loading import load, prompt
from ipcbench.profile.model.parallel import Runner
from ipcbench.profile.records import Setting

torch.set_num_threads(1)  # a forked child has none of its parent's threads

_DEADLINE_S = 120.0


def in_ranks(world: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what `work` returns at each rank, over gloo."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        children = [
            context.Process(target=_rank, args=(rank, folder, work, pipes), daemon=True) for rank in range(world)
        ]
        for child in children:
            child.start()
        try:
            for _, sender in pipes:  # a rank that dies ends its pipe
                sender.close()
            found = []
            for rank, (receiver, _) in enumerate(pipes):
                assert receiver.poll(_DEADLINE_S), f"rank {rank} did not answer"
                found.append(receiver.recv())
            return found
        finally:
            for child, ends in zip(children, pipes, strict=True):
                child.kill()
                child.join()
                child.close()
                ends[0].close()


def _rank(rank: int, folder: str, work: Callable[[int], Any], pipes: list[tuple[Connection, Connection]]) -> None:
    for number, (_, sender) in enumerate(pipes):
        if number != rank:
            sender.close()
    answer, world = pipes[rank][1], len(pipes)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", f"file://{folder}/store", world_size=world, rank=rank, timeout=timedelta(seconds=_DEADLINE_S)
    )
    found = work(rank)
    dist.barrier()
    dist.destroy_process_group()
    answer.send(found)


def logits(setting: Setting, rank: int = 0) -> list[Any] | None:
    """Return the logits of the prompt and of each decoded token as arrays, at a rank that has them."""
    loaded = load(setting)
    assert loaded.facts is not None
    runner, ids = Runner(loaded, setting, rank), prompt(setting, loaded.facts.vocab_size)
    found = [
        runner.step(ids[:, : setting.seq]),
        *(runner.step(ids[:, at : at + 1], at) for at in range(setting.seq, setting.seq + setting.tokens)),
    ]
    return None if found[0] is None else [item.float().numpy() for item in found if item is not None]


def relative_error(found: list[Any], expected: list[Any]) -> float:
    """Return the largest difference as a share of the largest logit."""
    assert len(found) == len(expected)
    largest = max(abs(item).max() for item in expected)
    assert largest > 0
    return float(max(abs(one - other).max() for one, other in zip(found, expected, strict=True)) / largest)
