"""The verbs of a rank: join the others, load the model, carry out iterations, answer with what was recorded.

This module is imported before the ranks are forked, and with it torch, so that all of them share one import.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it is read once: what it says would be a rank's last words

import msgspec
import torch
import torch.distributed as dist

from ipcbench.errors import ConfigError, IpcbenchError, StoreError
from ipcbench.harness.clocks import clock_identity
from ipcbench.profile.comm import group
from ipcbench.profile.comm.recorder import Recorder
from ipcbench.profile.model.loading import device_of, load, prompt
from ipcbench.profile.model.parallel import Runner, require_memory
from ipcbench.profile.model.plan import Plan
from ipcbench.profile.records import Operator, Phase, Profile, Setting, Source, Span, Step
from ipcbench.profile.timing import buckets, flops
from ipcbench.profile.timing.memory import measure
from ipcbench.profile.timing.operators import operators
from ipcbench.profile.timing.spans import Spans
from ipcbench.util.clock import longest_wait_ns, now_ns, run_queue_waits_ns

_PREFILLS = 3
_DECODES = 8
"""Steps under the operator profiler."""

_NO_MEMORY = ("alloc_cpu", "not enough memory", "can't allocate memory", "cannot allocate memory")
"""What torch says of memory of the processor that it does not get."""

Forward: TypeAlias = Callable[[], torch.Tensor | None]


class Rank:
    """One process of a run; or the one whose logits are compared with the others'.

    Attributes:
        setting: of the current run, after `prepare`, as what follows.
        world: ranks of the run.
        rank: which of them this is; one that is alone is rank 0, whatever its index.
        recorder: of its calls.
        runner: the rank's part of the model, after `setup`.
        verbs: what it can be asked, by name.
    """

    setting: Setting
    world: int
    rank: int
    recorder: Recorder
    runner: Runner

    def __init__(self, index: int) -> None:
        self.index = index
        self.verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "clock": lambda _: {"clock": clock_identity()},
            "echo": lambda _: {"clock_ns": now_ns()},
            "prepare": self._prepare,
            "setup": self._setup,
            "iterate": lambda asked: _packed(self.iterate(asked["source"], asked["number"])),
            "operators": lambda _: _packed(self.operators()),
            "memory": lambda _: _packed(self.memory()),
            "logits": lambda _: {"logits": [each.tobytes() for each in self.logits()]},
            "close": self._close,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return its answer; what the user can mend is `refused`, in one line."""
        try:
            return {"ok": True, **self.verbs[request["do"]](request)}
        except (ConfigError, StoreError) as error:
            return {"ok": True, "refused": str(error)}
        except (MemoryError, torch.OutOfMemoryError) as error:
            return {"ok": False, "error": "out of memory", "text": _one_line(error)}
        except IpcbenchError as error:
            return {"ok": False, "error": type(error).__name__, "text": str(error)}
        except Exception as error:  # of torch, or of a user's model: with the place
            if isinstance(error, RuntimeError | OSError) and any(word in str(error).lower() for word in _NO_MEMORY):
                return {"ok": False, "error": "out of memory", "text": _one_line(error)}
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{_one_line(error)} ({Path(frame.filename).name}:{frame.lineno})"
            return {"ok": False, "error": type(error).__name__, "text": text}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Read the setting; the last rank, which is where a GPU is, looks whether there is memory for all."""
        if "folder" in request:  # where a model that is compiled, or loads the compiler, puts its files
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", request["folder"])
        for name in request["imports"]:
            import_module(name)
        self.setting = msgspec.convert(request["setting"], Setting)
        self.world = Plan.parse(self.setting.parallel).world
        self.rank = self.index if self.world > 1 else 0
        self.recorder = Recorder(self.rank)
        if self.rank == self.world - 1:
            _require_gpus(self.setting, self.world)
            require_memory(self.setting)
        return {}

    def _setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Join the other ranks, and load this rank's part of the model."""
        setting = self.setting
        torch.set_num_threads(setting.threads)
        self.device = device_of(setting, self.rank)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1:
            meeting = request["addresses"], request["init_method"]
            group.start(setting.transport, self.rank, self.world, *meeting, self.recorder)
        loaded = load(setting)
        self._ids = prompt(setting, loaded.facts.vocab_size if loaded.facts else 1).to(self.device)
        self.runner = Runner(loaded, setting, self.rank)
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        return {"device": str(self.device), "name": name}

    def _close(self, _: dict[str, Any]) -> dict[str, Any]:
        """Leave the others, and the model; another `prepare` may follow."""
        if self.world > 1:
            group.stop()
        del self.runner
        gc.collect()
        return {}

    def gather(self, own: Any) -> list[Any]:
        """Return what each rank has, at rank 0; nothing at the others."""
        every: list[Any] | None = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(own, every)
        return every or []

    def logits(self) -> Iterator[Any]:
        """Yield the logits of each step, prompt and decoding, as numpy's float32; nothing at a rank that has none."""
        for _, _, forward in self._steps():
            logits = forward()
            if logits is not None:
                yield logits.detach().float().cpu().numpy()

    def iterate(self, source: Source | None, number: int) -> Profile:
        """Carry out the prompt and the decoding once, and return what was recorded.

        Args:
            source: how; None warms up, and records nothing.
            number: of the first step.
        """
        steps: list[Step] = []
        rows: list[Span] = []
        with ExitStack() as stack:
            stack.enter_context(_no_collecting())
            spans = None
            if source == "spans":
                spans = stack.enter_context(Spans(self.runner, self.setting.detail, self.device, self.rank))
                self.recorder.path = lambda: spans.current_path
            for phase, position, forward in self._steps():
                if phase not in self.setting.phases:  # decoding needs its cache
                    forward()
                    if self.device.type == "cuda":
                        torch.cuda.synchronize(self.device)
                    if spans:
                        spans.taken()  # they are of no step
                    continue
                step = self._timed(forward, phase, position, source, number + len(steps))
                steps.append(step)
                rows += spans.taken(step.number) if spans else []
        if source is None:
            return Profile(self.setting)
        return Profile(self.setting, steps=tuple(steps), spans=tuple(rows), calls=tuple(self.recorder.taken()))

    def operators(self) -> Profile:
        """Run steps of their own under the operator profiler, and return the operators' shares of each block, or which
        bucket failed.
        """
        buckets.failed.clear()
        rows: list[Operator] = []
        work = self._work()
        for phase in self.setting.phases:
            steps = self._steps()
            run, count = next(steps)[2], _PREFILLS
            if phase == "decode":
                run()  # for its cache
                run, count = lambda: next(steps)[2](), min(self.setting.tokens, _DECODES)  # noqa: B023, PLW0108
            rows += operators(run, self.runner, phase, count, self.device, rank=self.rank, work=work[phase])
        return Profile(self.setting, operators=tuple(rows), unavailable=tuple(buckets.failed.values()))

    def _work(self) -> dict[Phase, dict[tuple[str, str], flops.Work]]:
        """Return what the prompt and the decoding step in the middle do, by block and bucket."""
        found: dict[Phase, dict[tuple[str, str], flops.Work]] = {}
        for phase, position, forward in self._steps():
            if phase == "prefill" or position == self.setting.seq + self.setting.tokens // 2:
                found[phase] = flops.counted(forward, self.runner)
            else:
                forward()
        return found

    def memory(self) -> Profile:
        """Return this rank's memory, from an iteration of its own."""
        taken = measure(lambda: [forward() for _, _, forward in self._steps()], self.runner, self.device, self.rank)
        return Profile(self.setting, memory=(taken,))

    def _timed(self, forward: Forward, phase: Phase, position: int, source: Source | None, number: int) -> Step:
        """Carry out one step, which all ranks begin together."""
        if self.world > 1:
            dist.barrier()
        waits, start_ns = run_queue_waits_ns(), now_ns()
        if source == "spans":
            self.recorder.begin(number, start_ns)
        forward()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        wall_ns = now_ns() - start_ns
        self.recorder.end()
        core_wait_ns = longest_wait_ns(waits, run_queue_waits_ns())
        return Step(self.rank, number, phase, position, source or "plain", start_ns, wall_ns, core_wait_ns)

    def _steps(self) -> Iterator[tuple[Phase, int, Forward]]:
        """Yield the steps of an iteration in order: phase, tokens before it, and what carries it out."""
        seq, ids = self.setting.seq, self._ids
        yield "prefill", 0, partial(self.runner.step, ids[:, :seq])
        for position in range(seq, seq + self.setting.tokens * ("decode" in self.setting.phases)):
            yield "decode", position, partial(self.runner.step, ids[:, position : position + 1], position)


def _require_gpus(setting: Setting, world: int) -> None:
    """Raise ConfigError if ranks are to use NCCL, and one of them has no GPU of its own."""
    devices = {device_of(setting, rank) for rank in range(world)}
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))  # torchrun's ranks may be on several hosts
    if setting.transport == "nccl" and (len(devices) < here or any(device.type != "cuda" for device in devices)):
        raise ConfigError("--transport", "nccl", "a CUDA device of its own for each rank; other transports share one")


def _packed(part: Profile) -> dict[str, Any]:
    return {"part": msgspec.msgpack.encode(part)}


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Keep the garbage collector out of what is measured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
