"""A profile is made: ranks are started and asked, their logits compared with those of one process, nothing is left.

Under torchrun this process is a rank itself: it asks itself what it would ask its ranks, and rank 0 gathers.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ipcbench.backend import Launcher
from ipcbench.errors import ConfigError, IpcbenchError, TrialError, WorkerCrashed, WorkerTimeout
from ipcbench.harness.group import Group
from ipcbench.machine.describe import describe_machine, describe_versions
from ipcbench.processes.control_channel import Switchboard
from ipcbench.processes.run_dir import RunDir, require_room_for_sockets
from ipcbench.profile.comm.mesh import create_mesh, destroy_mesh
from ipcbench.profile.comm.waits import matched
from ipcbench.profile.model.plan import Plan, find_model, require_ranges
from ipcbench.profile.records import Agreement, Profile, Setting, Unavailable
from ipcbench.registry import get_backend
from ipcbench.util.reference import is_reference

INSTALL: Final = "pip install 'ipcbench[profile]'"
INSTALL_CPU: Final = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
"""Without the libraries of CUDA, some GB."""

LIMITS: Final = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""dtype → most by which logits may differ from those of one process: sums in another order are rounded otherwise, and
bfloat16 has 16 bits less than float32, float16 13.
"""

TORCH_TRANSPORTS: Final = ("gloo", "nccl")
"""Process groups of torch's own; every other transport is a backend."""

_VERBS = "ipcbench.profile.rank:Rank"
_SETUP_S = 600.0
_ITERATION_S = 3600.0
"""Longest wait for one prompt and its decoding."""
_BLAME_S = 5.0
_SHARED = "{} ranks share {} GPU: their kernels take turns, so that nothing follows for ranks with a GPU each."
_PARTS: Final = ("steps", "spans", "operators", "calls", "memory")
"""Fields of a profile that each rank has rows of."""

Logits: TypeAlias = list[npt.NDArray[np.float32]]
"""Of each step, flat; empty at a rank that has none."""
Say: TypeAlias = Callable[[str], None]
_Ask: TypeAlias = Callable[[dict[str, Any], float], list[dict[str, Any]]]


def require_torch() -> None:
    """Refuse to go on without torch.

    Raises:
        IpcbenchError: it is not installed.
    """
    if find_spec("torch") is None:
        raise IpcbenchError(
            f"torch is not installed, and a profile needs it: {INSTALL}; for a CPU alone, {INSTALL_CPU}"
        )


def profile(
    setting: Setting,
    *,
    imports: Sequence[str] = (),
    sources: Sequence[str] = ("plain", "spans"),
    say: Say = lambda _: None,
) -> Profile | None:
    """Run a model as the setting says, and return what its ranks recorded; None at ranks of torchrun other than 0.

    Args:
        setting: what to run.
        imports: modules that each rank imports first, such as one that registers a bucket of operators.
        sources: how each repetition is run, in random order: without and with instruments.
        say: called with a line for every repetition.

    Raises:
        IpcbenchError: a value is not allowed, torch is missing, or the model does not fit into memory.
        BackendUnavailable: the transport is missing.
        TrialError: a rank failed, ended or hung.
    """
    require_torch()
    asked, setting = setting.transport, resolved(setting)
    if asked != setting.transport == "none":
        raise ConfigError("--transport", asked, "nothing with --parallel none: one rank sends nothing")
    if "WORLD_SIZE" in os.environ:
        return _as_one_rank(setting, imports, sources, say)
    world = Plan.parse(setting.parallel).world
    with Ranks(world if world == 1 else world + 1, imports) as ranks:
        reference = None
        if world > 1:
            say("one process, to compare with")
            reference = ranks.reference(setting)
        if (launcher := launcher_of(setting.transport)) == "spawn":
            return ranks.profile(setting, reference, sources, say)
    with Ranks(world, imports, launcher) as ranks:
        return ranks.profile(setting, reference, sources, say)


def resolved(setting: Setting) -> Setting:
    """Return the setting with what follows from it: one rank has no transport, several have gloo unless told otherwise.

    Raises:
        ConfigError: a value is not allowed.
        UnknownBackend, BackendUnavailable: there is no such transport, or not here.
    """
    plan = Plan.parse(setting.parallel)
    if is_reference(setting.model) and not Path(setting.model).exists():
        setting = _of_own_model(setting)
    if setting.micro_batches > 1 and "pp" not in setting.parallel:
        raise ConfigError("--micro-batches", setting.micro_batches, "1 without a pipeline (--parallel ppN)")
    if not (Path(setting.model).is_dir() or ":" in setting.model):  # these may be of another shape
        plan.require(find_model(setting.model), setting)
    require_ranges(setting)
    if plan.world == 1:
        return replace(setting, transport="none")
    if setting.transport == "none":
        return replace(setting, transport="gloo")
    if setting.transport == "nccl" and (missing := _no_nccl()):
        raise ConfigError("--transport", "nccl", missing)
    if setting.transport not in TORCH_TRANSPORTS:
        backend = get_backend(setting.transport)
        backend.probe()
        if backend.capabilities.launcher in {"inline", "fork"}:
            raise ConfigError("--transport", setting.transport, "a transport between processes that open it by address")
    return setting


def _of_own_model(setting: Setting) -> Setting:
    """Return the setting of a model of the user's, which is called as it is: it has one phase."""
    allowed = setting.parallel == "none" and "prefill" in setting.phases
    if setting.is_fused or setting.attention != "sdpa" or not allowed:
        without = "without --parallel, --phase decode alone, --fused and --attn: it is called as it is"
        raise ConfigError("model", setting.model, without)
    return replace(setting, phases=("prefill",))


def _no_nccl() -> str:
    """Return what NCCL lacks here; looked up without an import of torch, which ranks are to have after their fork."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return ""
    libraries = Path(found.origin).parent / "lib"
    return "" if any(libraries.glob("libtorch_cuda*")) else "a build of torch with CUDA; this one is for a processor"


def launcher_of(transport: str) -> Launcher:
    """Return how the ranks of a transport are started."""
    is_backend = transport not in {"none", *TORCH_TRANSPORTS}
    return get_backend(transport).capabilities.launcher if is_backend else "spawn"


class Ranks:
    """Processes that carry out runs, one after another, each with as many of them as it needs; a context manager that
    leaves neither process nor channel behind. After an error they are killed: some may wait for others forever.

    Args:
        count: how many.
        imports: modules that each imports first.
        launcher: how they are started; only transports with the same can be used.
        verbs: MODULE:FACTORY of what they can be asked.
    """

    def __init__(
        self, count: int, imports: Sequence[str] = (), launcher: Launcher = "spawn", verbs: str = _VERBS
    ) -> None:
        self._count, self._imports, self._launcher, self._verbs = count, [*imports], launcher, verbs
        self._meetings = 0
        self._has_failed = False

    def __enter__(self) -> Self:
        require_room_for_sockets()
        with ExitStack() as undo:
            self._run_dir = undo.enter_context(RunDir())
            switchboard = undo.enter_context(Switchboard(self._run_dir.path))
            names = tuple(f"rank {index}" for index in range(self._count))
            self._group = Group(self._launcher, self._count - 1, switchboard, roles=names, verbs=self._verbs)
            undo.callback(self._group.kill)
            self._group.connect()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        with self._undo:
            if kind is None and self._launcher == "mpiexec":
                self._group.end()  # others hold nothing any more, and their way out takes a second

    def _kill_failed(self) -> None:
        if self._has_failed:
            self._group.kill()

    def _meeting(self, addresses: list[dict[str, Any]]) -> dict[str, Any]:
        """Return where ranks that are set up meet, once each time, and what they need before."""
        self._meetings += 1
        folder = str(self._run_dir.path)
        place = f"file://{folder}/meeting-{self._meetings}"
        return {"addresses": addresses, "init_method": place, "imports": self._imports, "folder": folder}

    def reference(self, setting: Setting) -> Logits:
        """Return the logits of every step, prompt and decoding, as one process computes them: the last of these."""
        alone = replace(setting, parallel="none", transport="none", micro_batches=1)
        ask = partial(_asked, self._group, (self._count - 1,))
        _set_up(ask, alone, self._meeting([]))
        (answer,) = ask({"do": "logits"}, _ITERATION_S)
        ask({"do": "close"}, _SETUP_S)
        return _logits(answer)

    def profile(
        self,
        setting: Setting,
        reference: Logits | None,
        sources: Sequence[str] = ("plain", "spans"),
        say: Say = lambda _: None,
        until_s: float = math.inf,
    ) -> Profile:
        """Return the profile of a setting that `resolved` has returned; its logits are compared with the reference.

        After `until_s`, of the monotonic clock, no repetition begins but the first of each source.
        """
        world = Plan.parse(setting.parallel).world
        ask = partial(_asked, self._group, range(world))
        if self._has_failed:
            raise TrialError("an earlier run in these processes has failed")
        self._has_failed = True  # unless it comes to its end
        with ExitStack() as undo:
            undo.callback(self._kill_failed)
            addresses: list[dict[str, Any]] = []
            if setting.transport not in {"none", *TORCH_TRANSPORTS}:
                addresses = create_mesh(setting.transport, world, name=self._run_dir.channel_name)
                undo.callback(destroy_mesh, addresses)
            made = _carry_out(ask, setting, self._meeting(addresses), sources, say, until_s)
            offsets = self._group.compare_clocks().offsets.values()
            ask({"do": "close"}, _SETUP_S)
            self._has_failed = False
        error_ns = max((abs(each.offset_ns) + each.error_ns for each in offsets), default=0.0)
        return _concluded(setting, made, reference, round(error_ns))


def _asked(group: Group, ranks: Sequence[int], question: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
    """Ask ranks, and return their answers in order; where one failed because another has died, that is the error."""
    try:
        answers = group.ask(dict.fromkeys(ranks, question), timeout_s)
    except (WorkerCrashed, WorkerTimeout):
        raise
    except TrialError as error:
        try:
            group.ask({rank: {"do": "echo"} for rank in ranks}, _BLAME_S)
        except WorkerCrashed as crashed:
            raise crashed from error
        except TrialError:  # they wait for the one that failed
            pass
        raise
    for answer in answers.values():
        if "refused" in answer:
            raise IpcbenchError(answer["refused"])
    return [answers[rank] for rank in ranks]


def _set_up(ask: _Ask, setting: Setting, meeting: dict[str, Any]) -> list[tuple[str, str]]:
    """Have the ranks look whether there is enough memory, then join and load; return each one's device and its name."""
    ask({**meeting, "do": "prepare", "setting": asdict(setting)}, _SETUP_S)
    return [(answer["device"], answer["name"]) for answer in ask({**meeting, "do": "setup"}, _SETUP_S)]


@dataclass(frozen=True, slots=True)
class _Made:
    """What ranks have answered, each list by rank."""

    devices: list[tuple[str, str]]
    """Device of torch, and the GPU's name."""
    parts: list[Profile]
    logits: list[Logits]


def _carry_out(
    ask: _Ask, setting: Setting, meeting: dict[str, Any], sources: Sequence[str], say: Say, until_s: float = math.inf
) -> _Made:
    """Have the ranks warm up, run each repetition with each source in random order, then operators, memory, logits;
    for plain steps alone, without the two passes between.
    """
    devices = _set_up(ask, setting, meeting)
    order: list[str | None] = [None] * setting.warmup
    turns = random.Random(0)  # noqa: S311 - an order, not a secret
    for _ in range(setting.steps):
        order += turns.sample(sources, len(sources))
    passes = [{"do": "operators"}] * (setting.detail == "op") + [{"do": "memory"}] * ("spans" in sources)
    parts: list[Profile] = []
    number = 0
    began_s = time.monotonic()
    for index, source in enumerate(order):
        left_s, is_first = until_s - time.monotonic(), index < setting.warmup + len(sources)
        if left_s < (time.monotonic() - began_s if source is None else 0) and (source is None or not is_first):
            continue  # half of the time, at most, is for the warm-up
        say(f"repetition {index + 1}/{len(order)}: {source or 'warm-up'}")
        parts += _parts(ask({"do": "iterate", "source": source, "number": number}, _ITERATION_S))
        number = max((step.number + 1 for step in parts[-1].steps), default=number)
    for question in passes:
        say(question["do"])
        parts += _parts(ask(question, _ITERATION_S))
    return _Made(devices, parts, [_logits(answer) for answer in ask({"do": "logits"}, _ITERATION_S)])


def _parts(answers: Sequence[dict[str, Any]]) -> list[Profile]:
    return [msgspec.msgpack.decode(answer["part"], type=Profile) for answer in answers]


def _logits(answer: dict[str, Any]) -> Logits:
    return [np.frombuffer(each, np.float32) for each in answer["logits"]]


def agreement(logits: Sequence[Logits], reference: Logits, dtype: str) -> Agreement:
    """Return how the logits of all ranks that have them compare with those of one process.

    Raises:
        TrialError: no rank has any, or one has others in number.
    """
    having = [each for each in logits if each]
    if not having or any([len(a) for a in each] != [len(a) for a in reference] for each in having):
        raise TrialError("the ranks have not the logits that one process has")
    largest = max(float(np.abs(each).max()) for each in reference)
    differences = [float(np.abs(a - b).max()) for each in having for a, b in zip(each, reference, strict=True)]
    error = float(np.max(differences)) / largest if largest else math.nan  # max() would pass over a nan
    return Agreement(error if math.isfinite(error) else None, LIMITS[dtype])


def _concluded(setting: Setting, made: _Made, reference: Logits | None, clock_error_ns: int) -> Profile:
    """Return the profile of what the ranks have answered."""
    rows: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(part, name) for part in made.parts)) for name in _PARTS
    }
    rows["calls"] = tuple(matched(rows["calls"], clock_error_ns))
    if failed := dict.fromkeys(chain.from_iterable(part.unavailable for part in made.parts)):
        rows["operators"] = ()  # some shares lack what the bucket would have had
    gpus = [device for device in made.devices if device[0] != "cpu"]
    names = ", ".join(sorted({name for _, name in gpus}))
    versions = describe_versions("torch", "transformers")
    is_shared = len({*gpus}) < len(gpus) and clock_error_ns != _UNKNOWN_CLOCK_NS
    return Profile(
        setting,
        machine={**describe_machine(), "devices": [" ".join(filter(None, device)) for device in made.devices]},
        versions=versions,
        **rows,
        agreement=None if reference is None else agreement(made.logits, reference, setting.dtype),
        unavailable=(*failed, *unavailable(len({*gpus}))),
        remarks=(_SHARED.format(len(gpus), len({*gpus})),) if is_shared else (),
        verified_on=f"{names}, torch {versions['torch']}" if gpus else None,
        clock_error_ns=clock_error_ns,
    )


def unavailable(gpus_count: int) -> tuple[Unavailable, ...]:
    """Return what a run on so many GPUs cannot measure, and what that needs."""
    one, two = "a GPU with CUDA (`--device cuda`)", "2 GPUs with CUDA"
    needs = {
        "kernel times by CUDA events, memory allocated, reserved and at its peak on the GPU": (1, one),
        "bandwidth between host and GPU, pinned and pageable, and within the GPU": (1, one),
        "NCCL, peer-to-peer copies, NVLink bandwidth and topology": (2, two),
    }
    return tuple(Unavailable(what, need) for what, (count, need) in needs.items() if gpus_count < count)


def _as_one_rank(setting: Setting, imports: Sequence[str], sources: Sequence[str], say: Say) -> Profile | None:
    """Be the rank that torchrun says; return the profile at rank 0, None at the others.

    Raises:
        ConfigError: torchrun has started another number of ranks, or the transport is none of torch's.
    """
    from ipcbench.profile.rank import Rank

    index, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if Plan.parse(setting.parallel).world != world:
        raise ConfigError("--parallel", setting.parallel, f"{world} ranks, as many as torchrun has started")
    if setting.transport not in {"none", *TORCH_TRANSPORTS}:
        raise ConfigError("--transport", setting.transport, f"{' or '.join(TORCH_TRANSPORTS)} under torchrun")
    rank = Rank(index)

    def ask(question: dict[str, Any], _: float) -> list[dict[str, Any]]:
        answer = rank.answer(question)
        if not answer["ok"]:
            raise TrialError(f"rank {index}: {answer['error']}: {answer['text']}")
        if "refused" in answer:
            raise IpcbenchError(answer["refused"])
        return [answer]

    meeting = {"addresses": [], "init_method": "env://", "imports": [*imports]}
    made = _carry_out(ask, setting, meeting, sources, say if index == 0 else lambda _: None)
    (clock,) = ask({"do": "clock"}, _SETUP_S)
    gathered = rank.gather((made, clock["clock"])) if world > 1 else [(made, clock["clock"])]
    ask({"do": "close"}, _SETUP_S)
    if index:
        return None
    each = [made for made, _ in gathered]
    made = _Made(*(list(chain.from_iterable(getattr(one, name) for one in each)) for name in _Made.__slots__))
    is_one_clock = len({clock for _, clock in gathered}) == 1 and gathered[0][1]
    reference = None
    if world > 1:
        with Ranks(1, imports) as alone:
            reference = alone.reference(setting)
    return _concluded(setting, made, reference, 0 if is_one_clock else _UNKNOWN_CLOCK_NS)


_UNKNOWN_CLOCK_NS = 2**62
"""Ranks on several hosts that nobody compared: more than any transfer takes, so that none is split."""
