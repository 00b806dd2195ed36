"""What a profile holds, as it was recorded: steps, spans, communication, memory, checks; and its file profile.json.

Times are nanoseconds of CLOCK_MONOTONIC of the ranks' host; sizes are bytes. None is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from ipcbench.errors import StoreError
from ipcbench.render.document import head
from ipcbench.stats.estimates import Interval
from ipcbench.util.files import as_store_errors, regular, write_bytes

FILE: Final = "profile.json"
_HEAD: Final = head("profile")

NO_FAILURE: Final = "a function that does not fail"
"""What a figure needs of which the user's own function has failed."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
RanksCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
Rank: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
Op: TypeAlias = Literal["all_reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
                        "barrier", "send", "recv"]  # fmt: skip
Phase: TypeAlias = Literal["prefill", "decode"]
Detail: TypeAlias = Literal["block", "module", "op"]
Source: TypeAlias = Literal["plain", "spans", "operators"]
"""How a step was run: without any instrument; with spans (the only source of times); under the operator profiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was asked for.

    Attributes:
        model: a preset, a config.json, a folder of transformers, or `module:factory`.
        parallel: `none`, `tpN`, `ppN`, `tpNppM` or `split`.
        transport: `gloo`, `nccl`, or a backend's name; `none` with one rank.
        seq: tokens of the prompt.
        tokens: how many are decoded after it, one a step.
        steps: how often prompt and decoding were repeated with spans; as often again without (`plain`).
        threads: of each rank.
        attention: `sdpa` or `eager`.
        is_fused: whether q, k and v are one linear layer, and gate and up another.
        micro_batches: into how many parts a pipeline divides the batch.
    """

    model: str
    parallel: str = "none"
    transport: str = "none"
    phases: tuple[Phase, ...] = ("prefill", "decode")
    seq: int = 128
    batch: int = 1
    tokens: int = 8
    steps: int = 10
    warmup: int = 3
    detail: Detail = "block"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    attention: Literal["eager", "sdpa"] = "sdpa"
    is_fused: bool = False
    micro_batches: int = 1


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One forward pass of one rank."""

    rank: Rank
    number: Count
    """Counted over the run; the same step has the same number at every rank."""
    phase: Phase
    position: Count
    """Tokens before it: 0 in prefill."""
    source: Source
    start_ns: Count
    wall_ns: Annotated[int, msgspec.Meta(gt=0)]
    """On a GPU until its last kernel has ended."""
    core_wait_ns: Count | None = None
    """For how long the rank's thread that waited the most was ready in it and had no core; None if the system does not
    say.
    """


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One call of a module, within a step of source `spans`."""

    rank: Rank
    step: Count
    path: str
    """Dotted name of the module: `layers.3.self_attn`; empty for the whole model."""
    kind: str
    """`root`, `embedding`, `layer`, `attention`, `mlp`, `norm`, `lm_head`, `block` (a child of a
    model of other names), or `module`."""
    start_ns: Count
    duration_ns: Count
    exclusive_ns: int
    """Without the spans inside it; the exclusive times of a step's spans add up to those of its root."""


class Operator(msgspec.Struct, frozen=True, array_like=True):
    """What an operator bucket took within one block, over all steps of source `operators` of a phase."""

    rank: Rank
    phase: Phase
    path: str
    """Of the innermost span around it of a kind other than `module`."""
    bucket: str
    """`qkv`, `scores`, `attention`, `output`, `gate_up`, `down`, `norms`, `rope`, `activation`, `communication`,
    `other`; or a registered one."""
    calls: Count
    """Per step."""
    exclusive_ns: float
    """Per step, as the operator profiler saw it: on a CPU, only its share of the block is to be believed."""
    share_ratio: float | None
    """Of the block's time in that pass; what is missing to 1 is host overhead. None on a GPU: there, `exclusive_ns` is
    what its kernels took, which the profiler does not change, and the rest of the block's time is host overhead."""
    flops: Count | None
    """Per step, from the shapes on `meta`; None where it has none or they are unknown."""
    bytes: Count | None
    """Read and written per step, if nothing is cached."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One communication call of one rank, measured (source `spans` or `plain`) or planned (all times None)."""

    rank: Rank
    step: Count
    sequence: Count
    """In the rank's program order within the step, from 0."""
    op: Op
    ranks: tuple[Rank, ...]
    """The members of the group; of `send` and `recv`, (source, destination)."""
    bytes: Count
    """As NCCL counts: of the tensor; all_gather: of the result; reduce_scatter: of the input."""
    dtype: str
    path: str
    """Of the module in which it was called; empty if unknown."""
    enter_ns: Count | None = None
    exit_ns: Count | None = None
    wait_ns: Count | None = None
    """For the others: until the last of them entered. `exit − enter − wait` is transfer."""
    match: Count | None = None
    """Number of the call that all members share: the nth of their group and kind in the run."""
    gap_ns: Count | None = None
    """The rank's own work before it, since the call before it or the step's start."""
    group: str = ""
    """Tells groups of the same ranks, or messages' tags, of another tool's calls apart; empty if unknown."""

    @property
    def took_ns(self) -> int | None:
        """Return its time with waiting."""
        return None if self.enter_ns is None or self.exit_ns is None else self.exit_ns - self.enter_ns


class Memory(msgspec.Struct, frozen=True):
    """Memory of one rank."""

    rank: Rank
    parameters_bytes: Count
    kv_cache_bytes: Count | None
    activations_bytes: Count | None
    """Most that was live beside parameters and cache in a step."""
    peak_rss_bytes: Count
    layers: Mapping[str, Count] = {}
    """Path → bytes by which the process grew while it ran: on a GPU its allocated peak, on a CPU the outputs' bytes."""
    allocated_bytes: Count | None = None
    """On a GPU, and so are those that follow."""
    reserved_bytes: Count | None = None
    peak_allocated_bytes: Count | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the logits compare with those of one process: the largest difference as a share of the largest logit."""

    relative_error: float | None
    """None if a logit is no number."""
    limit: float = 1e-4

    @property
    def holds(self) -> bool:
        """Return whether the error is within the limit."""
        return self.relative_error is not None and self.relative_error <= self.limit

    @property
    def words(self) -> str:
        """Return how they compare, without a full stop."""
        if self.relative_error is None:
            return "WRONG: some logits are no numbers; believe no figure of this run"
        words = f"differ from those of one process by {self.relative_error:.1e} of the largest (limit {self.limit:.0e})"
        return f"Logits {words}" if self.holds else f"WRONG: logits {words}; believe no figure of this run"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A figure that this machine or run could not give."""

    what: str
    needs: str
    """`2 GPUs`, `pip install …`."""

    @property
    def is_failure(self) -> bool:
        """Return whether a function of the user's own has failed."""
        return self.needs.startswith(NO_FAILURE)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One case of a sweep.

    Attributes:
        values: what was set: `parallel`, `transport`, `seq`, `batch`, `tokens`, `threads`; of `bandwidth`: `what`
            (`memcpy`, `send`, `all_reduce` …), `transport`, `ranks`, `direction`, `bytes`.
        figures: name with unit → figure with its 95 % interval (all three equal: too few rounds for one).
            `seq`, `parallel`: `ttft_ns`, `time_per_token_ns`, `tokens_per_s`; `parallel` also `speedup_ratio` and
            `efficiency_ratio` (against one process with all threads: `…_all_threads_ratio`), `communication_ratio`.
            `bandwidth`: `time_ns`, `bytes_per_s`, `bus_bytes_per_s`.
        reason: why it was not measured, or what it needs.
    """

    sweep: Literal["seq", "parallel", "bandwidth"]
    values: Mapping[str, str | int]
    figures: Mapping[str, Interval] = field(default_factory=dict)
    status: Literal["measured", "not measured", "unavailable", "failed"] = "measured"
    reason: str = ""
    rounds_count: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """One run, or a plan of one (`is_planned`: calls without times, nothing else), or calls of another tool, whose
    setting is not known.
    """

    setting: Setting | None
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    spans: tuple[Span, ...] = ()
    operators: tuple[Operator, ...] = ()
    calls: tuple[Call, ...] = ()
    memory: tuple[Memory, ...] = ()
    agreement: Agreement | None = None
    unavailable: tuple[Unavailable, ...] = ()
    remarks: tuple[str, ...] = ()
    is_planned: bool = False
    verified_on: str | None = None
    """The GPU on which its CUDA figures were measured, and torch's version; None for none."""
    clock_error_ns: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Most by which clocks of two ranks may differ; 0 on one host."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the numbers of the ranks."""
        return tuple(sorted({step.rank for step in self.steps} | {call.rank for call in self.calls}))


class _Stored(msgspec.Struct):
    format: str
    version: int
    profile: Profile


def write_profile(folder: Path, profile: Profile) -> Path:
    """Write profile.json into the folder, which is made if need be, and return its path.

    Raises:
        StoreError: it cannot be written.
    """
    path = folder / FILE
    data = msgspec.json.encode(_Stored(**_HEAD, profile=profile))
    write_bytes(path, data + b"\n")
    return path


def read_profile(path: Path) -> Profile:
    """Return the profile of a profile.json, or of the folder that holds it.

    Raises:
        StoreError: there is none, or it is damaged, or of another version.
    """
    with as_store_errors(path):
        path = path / FILE if path.is_dir() else path
        if not path.exists():
            raise StoreError(f"{path}: there is no such file; name the folder of a profile, or its {FILE}")
        data = regular(path).read_bytes()
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StoreError(f"{path}: no profile: {error!s:.300}") from error
    if (stored.format, stored.version) != (*_HEAD.values(),):
        known = _HEAD["version"]
        raise StoreError(f"{path}: {stored.format!r} version {stored.version}; this ipcbench reads version {known}")
    if odd := next(_odd(stored.profile), ""):
        raise StoreError(f"{path}: no profile: {odd}")
    return stored.profile


def odd_calls(calls: Iterable[Call]) -> Iterator[str]:
    """Yield what no rank can have called."""
    for call in calls:
        where = f"call {call.sequence} of step {call.step} at rank {call.rank}"
        if call.op in {"send", "recv"} and len(call.ranks) != 2:
            yield f"{where} is a {call.op} of {len(call.ranks)} ranks, not 2"
        if len({*call.ranks}) < len(call.ranks):
            yield f"{where} has a rank twice"
        if (call.took_ns or 0) < 0:
            yield f"{where} ends before it begins"
        if call.took_ns is not None and (call.wait_ns or 0) > call.took_ns:
            yield f"{where} waits longer than it takes"


def _odd(profile: Profile) -> Iterator[str]:
    """Yield what no run can have recorded."""
    yield from odd_calls(profile.calls)
    if profile.steps and not all(call.ranks for call in profile.calls):
        yield "a call is of no group"
    for span in profile.spans:
        if span.exclusive_ns > span.duration_ns:
            yield f"a span of step {span.step} at rank {span.rank} has more time of its own than it takes"
    seen = {(span.rank, span.step) for span in profile.spans}
    for step in profile.steps:
        if step.source == "spans" and (step.rank, step.number) not in seen:
            yield f"step {step.number} of rank {step.rank} lacks its spans"
