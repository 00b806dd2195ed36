"""What a profile says: the parts of each step's time, layers, operators, communication, and the cost of measuring.

All parts of a phase at a rank add up to its wall time. They are means over the same steps at all ranks, those that
nothing disturbed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from ipcbench.profile.comm.late import HeldUp, Late, held_up, latest, left_out_words, quiet
from ipcbench.profile.comm.waits import Bubble, Totals, bubble, extent_ns, matched, totals
from ipcbench.profile.records import Call, Operator, Phase, Profile, Setting, Source, Span, Step
from ipcbench.profile.timing.overhead import Overhead, overhead
from ipcbench.stats.estimates import FloatArray
from ipcbench.stats.figures import Figure, figure_of
from ipcbench.util.units import format_significant

HOST: Final = "host overhead"
WAIT, TRANSFER, UNDIVIDED = COMMUNICATION = ("communication wait", "communication transfer", "communication")
"""The last is what could not be divided into the two others."""
OTHER: Final = "other blocks"
BUCKETS: Final = ("attention", "mlp", "norms", "embedding", "lm_head", OTHER, *COMMUNICATION, HOST)
"""Parts of a step. Norms within layers, residuals and masks are `other blocks`: the operators show them."""
OWN: Final = "block"
"""Kind of the blocks of a model of other names; each is a part by itself, called by its path."""
_BUCKET_OF = {name: name for name in BUCKETS[:5]} | {"norm": "norms"}
_PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")
_BLOCKS = frozenset(("root", "layer", OWN, *_BUCKET_OF))
_OUTSIDE = "\0"
"""In the place of a path: within the step, but not within the model."""
BUSY_RATIO: Final = 0.05
_SLOW_RATIO = 1.1
"""A layer of one rank is named if it takes this many times what it takes at the others, or more."""


@dataclass(frozen=True, slots=True)
class Part:
    """A bucket, or a layer (by its path), of a step."""

    name: str
    ns: float
    """Of a layer: with the communication in it."""
    share_ratio: float
    """Of the wall time."""
    figure: Figure
    """Of a layer: without the communication in it."""
    communication_ns: float = 0.0

    @property
    def words(self) -> str:
        """Return its name in a sentence: that of a block of the user's own model may be a number."""
        return self.name if self.name in BUCKETS else f"block {self.name}"


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """An operator bucket within a block, scaled to the block's time without communication."""

    path: str
    bucket: str
    """What no operator accounts for is `host overhead`."""
    ns: float
    calls: int | None
    flops: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """One phase at one rank, per step."""

    phase: Phase
    rank: int
    steps_count: int
    wall: Figure
    """Its median; see `wall_ns`."""
    coverage_ratio: float
    """Share of the wall time within the model's own forward or communication."""
    buckets: tuple[Part, ...]
    layers: tuple[Part, ...]
    operators: tuple[OperatorTime, ...]
    blocks: Mapping[str, tuple[str, float]]
    """Path → kind and own time, ns, without communication; modules within a block count to it."""

    @property
    def units(self) -> tuple[Part, ...]:
        """Return the layers; of a model of other names, the blocks that take their place."""
        return self.layers or tuple(part for part in self.buckets if self.blocks.get(part.name, ("",))[0] == OWN)

    @property
    def wall_ns(self) -> float:
        """Return the mean of the steps that the parts are of: they add up to it."""
        return sum(part.ns for part in self.buckets)

    def ns(self, *buckets: str) -> float:
        """Return what buckets take together."""
        return sum(part.ns for part in self.buckets if part.name in buckets)

    def share(self, *buckets: str) -> float:
        """Return the share of buckets in the wall time."""
        return sum(part.share_ratio for part in self.buckets if part.name in buckets)


@dataclass(frozen=True, slots=True)
class SlowLayer:
    """A layer that takes clearly longer at one rank than at the others that have it, without communication."""

    phase: Phase
    rank: int
    path: str
    ns: float
    others_ns: float
    """Median over the other ranks."""


@dataclass(frozen=True, slots=True)
class PhaseTotal:
    """One phase over all ranks.

    Attributes:
        latency: from the first rank's start of a step to the last one's end, of steps without instruments if any.
        overhead: what spans add, from pairs of repetitions.
        totals: of communication; None if none was recorded.
        bubble: of a pipeline.
    """

    phase: Phase
    latency: Figure | None
    is_plain: bool
    overhead: Overhead
    totals: Totals | None
    bubble: Bubble | None


@dataclass(frozen=True)
class Summary:
    """A profile with what follows from it."""

    profile: Profile
    totals: tuple[PhaseTotal, ...]
    phases: tuple[PhaseSummary, ...]
    slow_layers: tuple[SlowLayer, ...]
    held_up: tuple[HeldUp, ...]
    late: Mapping[Phase, Late | None]
    """Of each phase with spans: who is late, of ranks that do the same work."""
    left_out: tuple[str, ...]
    """In sentences: phases of which many steps are in no part."""

    @property
    def setting(self) -> Setting:
        """Return what was asked for; of imported calls, which have no steps, only defaults."""
        return self.profile.setting or Setting(model="")

    def communicated_ns(self) -> dict[Span, int]:
        """Return the communication in each span that has any, ns; that in a span within it left out."""
        reader, found = _Reader(self.profile), defaultdict[Span, int](int)
        for step in self.profile.steps:
            at = step.rank, step.number
            for span, took_ns, _ in communicated(reader.spans[at], reader.calls[at], step.start_ns):
                if span is not None:
                    found[span] += took_ns
        return found

    def core_wait(self) -> tuple[int, float] | None:
        """Return the rank that waited the most for a core, and its share of the steps that nothing else held up; None
        if nothing says so.
        """
        waited, walls, held_up = Counter[int](), Counter[int](), {each.step for each in self.held_up}
        for step in self.profile.steps:
            if step.core_wait_ns is not None and step.number not in held_up:
                waited[step.rank] += step.core_wait_ns
                walls[step.rank] += step.wall_ns
        shares = ((rank, waited[rank] / wall) for rank, wall in walls.items())
        return max(shares, key=lambda each: each[1], default=None)

    @property
    def core_wait_words(self) -> str:
        """Return that a rank waited much for a core; an empty text if none did."""
        rank, ratio = self.core_wait() or (0, 0.0)
        share = f"{format_significant(100 * ratio, 2)} %"
        return f"Rank {rank} was ready and had no core for {share} of its steps." if ratio >= BUSY_RATIO else ""

    @property
    def is_own_model(self) -> bool:
        """Return whether it is of a function of the user's, which is called with its own inputs."""
        return ":" in self.setting.model

    @property
    def bucket_names(self) -> list[str]:
        """Return the names of all parts in order; blocks of a model of other names stand before what is between."""
        own = dict.fromkeys(part.name for each in self.phases for part in each.buckets if part.name not in BUCKETS)
        place = BUCKETS.index(OTHER)
        return [*BUCKETS[:place], *own, *BUCKETS[place:]]

    @property
    def by_phase(self) -> list[list[PhaseSummary]]:
        """Return the phases with spans, each at all its ranks."""
        found = ([each for each in self.phases if each.phase == total.phase] for total in self.totals)
        return [ranks for ranks in found if ranks]

    @property
    def call_totals(self) -> list[tuple[Phase | None, Totals | None]]:
        """Return the communication of each phase; of calls without steps, of all together."""
        return [(each.phase, each.totals) for each in self.totals] or [(None, totals(self.profile.calls))]

    def total(self, phase: Phase) -> PhaseTotal | None:
        """Return a phase over all ranks."""
        return next((each for each in self.totals if each.phase == phase), None)

    def latency(self, phase: Phase) -> Figure | None:
        """Return the time to the first token (`prefill`), or per further one (`decode`), ns."""
        total = self.total(phase)
        return total.latency if total else None

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tokens decoded per second, of all sequences of the batch."""
        latency = self.latency("decode")
        return None if latency is None else self.setting.batch * 1e9 / latency.value


def summarize(profile: Profile) -> Summary:
    """Return what a profile says; a plan has totals of communication only."""
    profile = with_matches(profile)
    reader = _Reader(profile)
    phases = tuple(
        found for phase in reader.phases for rank in profile.ranks if (found := reader.phase(phase, rank)) is not None
    )
    slow = () if reader.setting.parallel == "split" else tuple(_slow_layers(phases))  # there, ranks do different work
    walls = {each.phase: each.wall_ns for each in phases}
    late = {
        phase: latest(profile.calls, {step: reader.repetitions[step] for step in reader.quiet[phase]}, ns)
        for phase, ns in walls.items()
    }
    left_out = tuple(filter(None, map(reader.left_out_words, reader.phases)))
    return Summary(profile, tuple(map(reader.total, reader.phases)), phases, slow, reader.held_up, late, left_out)


def with_matches(profile: Profile) -> Profile:
    """Return a profile whose calls that have times have matches and, where it can be told, waits."""
    if all(call.enter_ns is None or call.match is not None for call in profile.calls):
        return profile
    return replace(profile, calls=tuple(matched(profile.calls, profile.clock_error_ns)))


class _Reader:
    """Looks up what belongs to a step."""

    def __init__(self, profile: Profile) -> None:
        self.profile, self.setting = profile, profile.setting or Setting(model="")
        self.phases = tuple(phase for phase in _PHASES if any(step.phase == phase for step in profile.steps))
        self.spans: dict[tuple[int, int], list[Span]] = defaultdict(list)
        self.calls: dict[tuple[int, int], list[Call]] = defaultdict(list)
        for span in profile.spans:
            self.spans[span.rank, span.step].append(span)
        for call in profile.calls:
            self.calls[call.rank, call.step].append(call)
        self.held_up = held_up(profile)
        self.stopped = {each.step for each in self.held_up}
        self.quiet = {phase: quiet(profile, phase, self.stopped) for phase in self.phases}

    @cached_property
    def repetitions(self) -> Mapping[int, int]:
        """Number of a step → of its repetition: a new one begins where the position does not rise."""
        found, last, count = {}, -1, 0
        for number, position in sorted({(step.number, step.position) for step in self.profile.steps}):
            count += position <= last
            found[number], last = count, position
        return found

    def left_out_words(self, phase: Phase) -> str:
        """Return that many steps of a phase are in no part; those that something stopped are named elsewhere."""
        steps = {step.number for step in self.profile.steps if (step.phase, step.source) == (phase, "spans")}
        return left_out_words(phase, len(self.quiet[phase]), len(steps - self.stopped or steps))

    def phase(self, phase: Phase, rank: int) -> PhaseSummary | None:
        """Return a phase at a rank; None if it has no step with spans in which nothing stopped a rank."""
        steps = [s for s in self.profile.steps if (s.rank, s.phase, s.source) == (rank, phase, "spans")]
        kept = [place for place, step in enumerate(steps) if step.number in self.quiet[phase]]
        if not kept:
            return None
        table, kinds = self._table(steps)
        walls = np.array([step.wall_ns for step in steps], dtype=np.float64)
        wall_ns = float(walls[kept].mean())

        def part(name: str, values: FloatArray, own: FloatArray) -> Part:
            ns = float(values[kept].mean())
            return Part(name, ns, ns / wall_ns, self._figure(own, steps), ns - float(own[kept].mean()))

        layers = [path for path, kind in kinds.items() if kind == "layer"]
        inside = {
            layer: np.sum([t for path, t in table.items() if f"{path}.".startswith(f"{layer}.")], axis=0)
            for layer in layers
        }
        blocks = {path: (kind, 0.0) for path, kind in kinds.items() if kind in _BLOCKS}
        for path, values in table.items():
            if path != _OUTSIDE and (near := _nearest(path, blocks)) in blocks:
                blocks[near] = (blocks[near][0], blocks[near][1] + float(values[kept, 0].mean()))
        operators = [each for each in self.profile.operators if (each.rank, each.phase) == (rank, phase)]
        return PhaseSummary(
            phase, rank, len(steps), self._figure(walls, steps),
            1 - float(table[_OUTSIDE][kept, 0].sum() / walls[kept].sum()),
            tuple(part(name, values, values) for name, values in _buckets(table, kinds).items()),
            tuple(part(path, values.sum(axis=1), values[:, 0]) for path, values in inside.items()),
            tuple(_operators(operators, blocks)),
            blocks,
        )  # fmt: skip

    def _table(self, steps: Sequence[Step]) -> tuple[dict[str, FloatArray], dict[str, str]]:
        """Return path → its time in each step, ns, shape (steps, 4): own, waiting, transfer, undivided communication;
        and path → kind.
        """
        table: dict[str, FloatArray] = defaultdict(lambda: np.zeros((len(steps), 4)))
        kinds: dict[str, str] = {}
        for number, step in enumerate(steps):
            spans = self.spans[step.rank, step.number]
            for span in spans:
                table[span.path][number, 0] += span.exclusive_ns
                kinds[span.path] = span.kind
            table[_OUTSIDE][number, 0] = step.wall_ns - sum(span.exclusive_ns for span in spans)
            for around, took_ns, wait_ns in communicated(spans, self.calls[step.rank, step.number], step.start_ns):
                row = table[around.path if around else _OUTSIDE][number]
                taken = min(took_ns, row[0])
                wait = None if wait_ns is None else min(taken, wait_ns)
                row += (-taken, 0, 0, taken) if wait is None else (-taken, wait, taken - wait, 0)
        return table, kinds

    def _figure(self, values: FloatArray, steps: Sequence[Step]) -> Figure:
        return figure_of([value for value in self._rounds(values, steps) if value is not None])

    def _rounds(self, values: FloatArray, steps: Sequence[Step]) -> list[float | None]:
        """Return the median of each repetition; steps in which something stopped a rank are left out if there are
        others, so that of some nothing is left.
        """
        kept = {step.number for step in steps} - self.stopped or {step.number for step in steps}
        groups: dict[int, list[float]] = defaultdict(list)
        for value, step in zip(values.tolist(), steps, strict=True):
            groups[self.repetitions[step.number]] += [value] if step.number in kept else []
        return [float(np.median(group)) if group else None for group in groups.values()]

    def total(self, phase: Phase) -> PhaseTotal:
        """Return a phase over all ranks."""
        plain, spans = (self._latency(phase, source) for source in ("plain", "spans"))
        known = [ns for ns in plain or spans if ns is not None]
        latency, cost = figure_of(known) if known else None, overhead(plain, spans)
        steps = [step for step in self.profile.steps if step.phase == phase and step.source != "operators"]
        numbers = {step.number for step in steps}
        calls = [call for call in self.profile.calls if call.step in numbers]
        stages, found = re.search(r"pp(\d+)", self.setting.parallel), None
        if stages:
            found = bubble(calls, steps, int(stages[1]), self.setting.micro_batches)
        return PhaseTotal(phase, latency, bool(plain), cost, totals(calls) if calls else None, found)

    def _latency(self, phase: Phase, source: Source) -> list[float | None]:
        groups: dict[int, list[Step]] = defaultdict(list)
        for step in self.profile.steps:
            if (step.phase, step.source) == (phase, source):
                groups[step.number].append(step)
        whole = [steps for steps in groups.values() if len(steps) == len(self.profile.ranks)]
        spans = np.array([extent_ns(steps) for steps in whole], dtype=np.float64)
        return self._rounds(spans, [steps[0] for steps in whole])


def communicated(
    spans: Sequence[Span], calls: Iterable[Call], start_ns: int
) -> Iterator[tuple[Span | None, int, int | None]]:
    """Yield what communication takes out of the spans of a rank's step: span, time in it, and waiting within that.

    Calls that overlap count once, and what a block computes meanwhile is not communication.
    """
    last = start_ns
    for call in sorted(calls, key=lambda call: call.enter_ns or 0):
        if call.enter_ns is not None and call.exit_ns is not None:
            begin = max(call.enter_ns, last)
            last = max(last, call.exit_ns)
            wait = None if call.wait_ns is None else max(0, call.wait_ns - (begin - call.enter_ns))
            yield _around(call.enter_ns, call.exit_ns, call.path, spans), max(0, call.exit_ns - begin), wait


def _around(enter_ns: int, exit_ns: int, path: str, spans: Sequence[Span]) -> Span | None:
    """Return the innermost span around a call; None for none."""
    around = [each for each in spans if each.start_ns <= enter_ns and exit_ns <= each.start_ns + each.duration_ns]
    named = [each for each in around if each.path == path and path]
    return min(named or around, key=lambda each: each.duration_ns, default=None)


def _nearest(path: str, known: Iterable[str]) -> str:
    """Return the path, or the nearest one around it, that is known; the empty path for none."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path


def _buckets(table: Mapping[str, FloatArray], kinds: Mapping[str, str]) -> dict[str, FloatArray]:
    """Return bucket → its time in each step, ns, without those that have none."""
    names = {path: path if kind == OWN else _BUCKET_OF.get(kind, OTHER)
             for path, kind in kinds.items() if kind in _BLOCKS}  # fmt: skip
    found: dict[str, FloatArray] = defaultdict(lambda: np.zeros(len(table[_OUTSIDE])))
    for path, values in table.items():
        found[HOST if path == _OUTSIDE else names.get(_nearest(path, names), OTHER)] += values[:, 0]
        for place, name in enumerate(COMMUNICATION, 1):
            found[name] += values[:, place]
    ordered = [*BUCKETS[:5], *(path for path, kind in kinds.items() if kind == OWN), *BUCKETS[5:]]
    return {name: found[name] for name in ordered if name == HOST or found[name].any()}


def _operators(rows: Sequence[Operator], parts: Mapping[str, tuple[str, float]]) -> Iterable[OperatorTime]:
    """Yield the operators (of one rank and phase) of each block, and its host overhead.

    Shares are scaled to the block's time. What kernels of a GPU take is known itself, and scaled only if it is more.
    """
    blocks: dict[str, list[Operator]] = defaultdict(list)
    for row in rows:
        blocks[row.path].append(row)
    times: dict[str, float] = defaultdict(float)
    for path, (_, ns) in parts.items():
        times[_nearest(path, blocks)] += ns
    for path, own in blocks.items():
        kept = [(row, row.exclusive_ns if row.share_ratio is None else row.share_ratio)
                for row in own if row.bucket != "communication"]  # fmt: skip
        is_known = any(row.share_ratio is None for row, _ in kept)
        sent = sum(row.share_ratio or 0.0 for row in own if row.bucket == "communication")
        rest = times[path] if is_known else 1.0 - sent
        whole = max(rest, taken := sum(share for _, share in kept))
        if whole <= 0:
            continue
        for row, share in kept:
            yield OperatorTime(path, row.bucket, times[path] * share / whole, row.calls, row.flops, row.bytes)
        yield OperatorTime(path, HOST, times[path] * (whole - taken) / whole, None, None, None)


def _slow_layers(phases: Sequence[PhaseSummary]) -> Iterable[SlowLayer]:
    groups: dict[tuple[Phase, str], list[tuple[int, Figure]]] = defaultdict(list)
    for each in phases:
        for layer in each.layers:
            groups[each.phase, layer.name].append((each.rank, layer.figure))
    among = sum(map(len, groups.values()))
    for (phase, path), figures in groups.items():
        for rank, figure in figures:
            others = sorted((other for r, other in figures if r != rank), key=lambda other: other.value)
            other = others[len(others) // 2] if others else figure
            if figure.value >= _SLOW_RATIO * other.value and figure.is_slower(other, among):
                yield SlowLayer(phase, rank, path, figure.value, other.value)
