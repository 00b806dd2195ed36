"""Rules that say what to change, each with the figures that it rests on and the most that it can save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeAlias

from ipcbench.errors import ConfigError
from ipcbench.profile.records import Phase, SweepPoint
from ipcbench.profile.summary import COMMUNICATION, HOST, TRANSFER, WAIT, Part, PhaseSummary, Summary
from ipcbench.stats.decisions import verdict
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

WAIT_RATIO: Final = 0.1
TRANSFER_RATIO: Final = 0.1
HOST_RATIO: Final = 0.2
BUCKET_RATIO: Final = 0.4
LAYER_RATIO: Final = 1.5
SCORES_RATIO: Final = 0.05
MEMORY_RATIO: Final = 0.8


@dataclass(frozen=True, slots=True)
class Advice:
    """What a rule found.

    Attributes:
        rule: its name.
        action: what to change, in a sentence.
        evidence: the figures, in a sentence.
        gain_ratio: the most that it can save, as a share of the time of `phase`; None if that cannot be said.
        threshold: when the rule speaks.
        phase: None for the whole run.
    """

    rule: str
    action: str
    evidence: str
    gain_ratio: float | None
    threshold: str
    phase: Phase | None = None


Rule: TypeAlias = Callable[[Summary, Sequence[SweepPoint]], Iterable[Advice]]
_RULES: dict[str, Rule] = {}


def register_rule(name: str, rule: Rule) -> None:
    """Add a rule; it is called with a summary and the points of sweeps, and yields what it finds.

    Raises:
        ConfigError: the name is taken.
    """
    if name in _RULES:
        raise ConfigError("rule", name, "a name that no rule has")
    _RULES[name] = rule


def advise(summary: Summary, points: Sequence[SweepPoint] = ()) -> tuple[Advice, ...]:
    """Return what all rules find, the largest gain first; of one rule, only the phase where it is largest."""
    best: dict[tuple[str, str], Advice] = {}
    for rule in _RULES.values():
        for found in rule(summary, points):
            key = (found.rule, found.action)
            if key not in best or (found.gain_ratio or 0) > (best[key].gain_ratio or 0):
                best[key] = found
    return tuple(sorted(best.values(), key=lambda advice: -(advice.gain_ratio or 0)))


def percent(ratio: float) -> str:
    """Return a share in percent with two digits."""
    return f"{format_significant(100 * ratio, 2)} %"


def _by_phase(summary: Summary) -> Iterator[list[PhaseSummary]]:
    for total in summary.totals:
        ranks = [each for each in summary.phases if each.phase == total.phase]
        if ranks:
            yield ranks


def _waiting(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    for ranks in _by_phase(summary):
        most, least = (choose(ranks, key=lambda each: each.share(WAIT)) for choose in (max, min))
        if len(ranks) < 2 or most.share(WAIT) < WAIT_RATIO:
            continue
        slow = [each for each in summary.slow_layers if each.phase == most.phase]
        pipeline = "pp" in summary.profile.setting.parallel
        action = "Keep the pipeline full: more micro-batches (--micro-batches), or several requests at a time."
        if slow or not pipeline:
            action = f"Give rank {least.rank} less to do, or find out why it is late: the others wait for it."
        evidence = (
            f"Rank {most.rank} waits {format_duration_ns(most.ns(WAIT))} of a {most.phase} step, "
            f"{percent(most.share(WAIT))}; rank {least.rank} {format_duration_ns(least.ns(WAIT))}."
        )
        for each in slow[:2]:
            evidence += (
                f" {each.path} takes {format_duration_ns(each.ns)} at rank {each.rank}, "
                f"{format_duration_ns(each.others_ns)} at the others."
            )
        threshold = f"waiting is at least {percent(WAIT_RATIO)} of a step"
        yield Advice("waiting", action, evidence, most.share(WAIT), threshold, most.phase)


def _transfer(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    for ranks in _by_phase(summary):
        most = max(ranks, key=lambda each: each.share(TRANSFER))
        total = summary.total(most.phase)
        if most.share(TRANSFER) < TRANSFER_RATIO or total is None:
            continue
        yield Advice(
            "transfer",
            f"Try another transport than {summary.profile.setting.transport}: `ipcbench profile replay` sends these "
            "calls over others.",
            f"Transfer takes {format_duration_ns(most.ns(TRANSFER))} of a {most.phase} step at rank {most.rank}, "
            f"{percent(most.share(TRANSFER))}.",
            most.share(TRANSFER),
            f"transfer is at least {percent(TRANSFER_RATIO)} of a step",
            most.phase,
        )


def _host(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    for ranks in _by_phase(summary):
        shares = {each.rank: host_share(each) for each in ranks}
        most = max(ranks, key=lambda each: shares[each.rank])
        if (share := shares[most.rank]) >= HOST_RATIO:
            yield Advice(
                "host overhead",
                "Do more in each operator: a larger batch, fused linear layers (--fused), or a compiled model.",
                f"Between operators {percent(share)} of a {most.phase} step passes at rank {most.rank} (Python and "
                "dispatch).",
                share,
                f"host overhead is at least {percent(HOST_RATIO)} of a step",
                most.phase,
            )


def host_share(each: PhaseSummary) -> float:
    """Return the share of a step outside the model, and between operators within its blocks as far as is known."""
    return each.share(HOST) + sum(o.ns for o in each.operators if o.bucket == HOST) / each.wall.value


def _largest(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    for each in summary.phases:
        own = [part for part in each.buckets if part.name not in {*COMMUNICATION, HOST}]
        part = max(own, key=lambda part: part.ns, default=None)
        if part is None or part.share_ratio < BUCKET_RATIO:
            continue
        evidence = (
            f"{part.name} takes {format_duration_ns(part.ns)} of a {each.phase} step, {percent(part.share_ratio)}"
        )
        yield Advice(
            "largest part",
            f"Look at {part.name} first: no other part of the computation can save as much.",
            f"{evidence} (rank {each.rank}).",
            None,
            f"one part is at least {percent(BUCKET_RATIO)} of a step",
            each.phase,
        )


def _layer(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    for each in summary.phases:
        layers = sorted(each.layers, key=lambda part: part.figure.value)
        if len(layers) < 3:
            continue
        slowest, middle = layers[-1], layers[len(layers) // 2]
        saved = slowest.figure.value - median(part.figure.value for part in layers)
        if slowest.figure.value >= LAYER_RATIO * middle.figure.value and _is_slower(slowest, middle, len(layers)):
            yield Advice(
                "slowest layer",
                f"Find out what is different about {slowest.name} at rank {each.rank}.",
                f"Without communication it takes {format_duration_ns(slowest.figure.value)} of a {each.phase} step, a "
                f"median one {format_duration_ns(middle.figure.value)}.",
                saved / each.wall.value,
                f"a layer takes at least {LAYER_RATIO} times the median one, and clearly more",
                each.phase,
            )


def _is_slower(part: Part, other: Part, among: int) -> bool:
    a, b = part.figure.estimate, other.figure.estimate
    return a is not None and b is not None and verdict(a, b, among=among) == "slower"


def _eager(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    if summary.profile.setting.attention != "eager":
        return
    for each in summary.phases:
        ns = sum(operator.ns for operator in each.operators if operator.bucket in {"scores", "attention"})
        if ns >= SCORES_RATIO * each.wall.value:
            yield Advice(
                "eager attention",
                "Use --attn sdpa: it does not write the attention matrices.",
                f"Scores and their products take {format_duration_ns(ns)} of a {each.phase} step.",
                ns / each.wall.value,
                f"they are at least {percent(SCORES_RATIO)} of a step",
                each.phase,
            )


def _memory(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    profile = summary.profile
    sizes = [profile.machine.get(key) for key in ("memory_limit_bytes", "memory_bytes")]
    limit = min((size for size in sizes if isinstance(size, int)), default=None)
    used = sum(memory.peak_rss_bytes for memory in profile.memory)
    if limit is not None and used >= MEMORY_RATIO * limit:
        evidence = f"The ranks took up to {format_bytes(used)} together, of {format_bytes(limit)}."
        threshold = f"the ranks' peaks are at least {percent(MEMORY_RATIO)} of the memory"
        yield Advice("memory", "Use a smaller batch, prompt or data type, or more machines.", evidence, None, threshold)


def _parallel(summary: Summary, points: Sequence[SweepPoint]) -> Iterator[Advice]:
    """Yield which of the measured ways to divide the model is quickest, if it clearly is."""
    for name, phase in (("time_per_token_ns", "decode"), ("ttft_ns", "prefill")):
        groups: dict[tuple[object, ...], list[SweepPoint]] = {}
        for point in points:
            if point.sweep != "bandwidth" and point.status == "measured" and name in point.figures:
                same = tuple(point.values.get(key) for key in ("model", "seq", "batch", "tokens"))
                groups.setdefault(same, []).append(point)
        for group in groups.values():
            best, *others = sorted(group, key=lambda point: point.figures[name].estimate)
            base = next((point for point in others if point.values.get("parallel") == "none"), None)
            worst = base or (others[0] if others else None)
            if worst is None or best.figures[name].high >= worst.figures[name].low:
                continue
            times = [format_duration_ns(each.figures[name].estimate) for each in (best, worst)]
            yield Advice(
                "division",
                f"Use {case_words(best)}.",
                f"{phase}: {times[0]} with {case_words(best)}, {times[1]} with {case_words(worst)} (sweep).",
                1 - best.figures[name].estimate / worst.figures[name].estimate,
                "the intervals of a sweep's cases do not overlap",
                "decode" if phase == "decode" else "prefill",
            )


def case_words(point: SweepPoint) -> str:
    """Return how a case of a sweep divides the model: `tp2 over shm, 1 thread each`."""
    values = point.values
    words = "one process" if values.get("parallel") == "none" else str(values.get("parallel"))
    if values.get("transport") not in {None, "none"}:
        words += f" over {values['transport']}"
    threads = values.get("threads", 1)
    return words if threads == 1 else f"{words}, {threads} threads each"


for _name, _rule in (
    ("waiting", _waiting), ("transfer", _transfer), ("host overhead", _host), ("largest part", _largest),
    ("slowest layer", _layer), ("eager attention", _eager), ("memory", _memory), ("division", _parallel),
):  # fmt: skip
    register_rule(_name, _rule)
