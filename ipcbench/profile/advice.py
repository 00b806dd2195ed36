"""Rules that say what to change, each with the figures that it rests on and the most that it can save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ipcbench.profile.comm.late import WAIT_RATIO, Late
from ipcbench.profile.records import Phase, SweepPoint
from ipcbench.profile.summary import BUSY_RATIO, COMMUNICATION, HOST, OTHER, TRANSFER, WAIT, PhaseSummary, Summary
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

_MANY_REPETITIONS: Final = 20
TRANSFER_RATIO: Final = 0.1
HOST_RATIO: Final = 0.2
BUCKET_RATIO: Final = 0.4
LAYER_RATIO: Final = 1.5
SCORES_RATIO: Final = 0.05
MEMORY_RATIO: Final = 0.8
BUSY: Final = "busy machine"
"""The rule that comes first: on such a machine, all other figures hold some of the wait for a core."""
WHOLE: Final = "whole_ns"
"""Figure of a sweep by which ways to divide a model are compared."""


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


def advise(summary: Summary, points: Sequence[SweepPoint] = ()) -> tuple[Advice, ...]:
    """Return what all rules find, the largest gain first; of one rule, only where it is largest. With wrong logits,
    or from one repetition, nothing follows.
    """
    if summary.profile.agreement and not summary.profile.agreement.holds:
        return ()
    figures = [total.latency for total in summary.totals] + [each.wall for each in summary.phases]
    if any(len(figure.rounds) < 2 for figure in figures if figure):
        return ()  # one repetition may be any
    best: dict[str, Advice] = {}
    for rule in _RULES:
        for found in rule(summary, points):
            if found.rule not in best or (found.gain_ratio or 0) > (best[found.rule].gain_ratio or 0):
                best[found.rule] = found
    return tuple(sorted(best.values(), key=lambda advice: (advice.rule != BUSY, -(advice.gain_ratio or 0))))


def percent(ratio: float) -> str:
    """Return a share in percent with two digits."""
    return f"{format_significant(100 * ratio, 2)} %"


def _busy(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    if evidence := summary.core_wait_words:
        action = "Measure again where each rank has a core for itself: all times here hold the wait for one."
        threshold = f"a rank waits for a core at least {percent(BUSY_RATIO)} of its steps"
        yield Advice(BUSY, action, evidence, None, threshold)


def _waiting(summary: Summary, points: Sequence[SweepPoint]) -> Iterator[Advice]:
    if summary.setting.parallel == "split" or _is_better_whole(points):
        return  # client and server cannot share their work otherwise; one process waits for nobody
    threshold = f"a rank waits at least {percent(WAIT_RATIO)} of a step"
    for phase in summary.by_phase:
        late = summary.late[phase[0].phase] if "tp" in summary.setting.parallel else None
        most, least = (choose(phase, key=lambda each: each.share(WAIT)) for choose in (max, min))
        if late:
            (rank, few), *_, (waiting, much) = late.waits_ns.items()
            most = next((each for each in phase if each.rank == waiting), most)
            evidence = f"Rank {waiting} waits {_part(most, much)}, rank {rank} waits {_ms(few)}."
            gain = late.gain_ns / most.wall_ns if late.ranks else None
            yield Advice("waiting", _of_late(late), evidence, gain, f"{threshold} more than another", most.phase)
        elif "pp" in summary.setting.parallel and most.share(WAIT) >= WAIT_RATIO:
            action = "Keep the pipeline full: a larger batch in more parts (--batch, --micro-batches)."
            work_ns = {each.wall_ns - each.ns(WAIT): each.rank for each in phase}
            busy, idle = max(work_ns), min(work_ns)
            evidence = f"Rank {most.rank} waits {_part(most, most.ns(WAIT))}, rank {least.rank} {_ms(least.ns(WAIT))}; "
            evidence += f"without that, rank {work_ns[busy]} takes {_ms(busy)}, rank {work_ns[idle]} {_ms(idle)}."
            gain = max(0.0, 1 - busy / max(each.wall_ns for each in phase))  # a stage cannot be quicker than full
            yield Advice("waiting", action, evidence, gain, threshold, most.phase)


def _of_late(late: Late) -> str:
    who = f"rank{'s' * (len(late.ranks or late.first) > 1)} {', '.join(map(str, late.ranks or late.first))}"
    if late.ranks:
        return f"Give {who} less to do, or find out why others wait for {who}."
    if late.is_changing:
        return "Find out why ranks are late: which one is changes from step to step."
    if late.repetitions < _MANY_REPETITIONS:
        return "Measure more steps (--steps): these are too few to say which rank is late."
    return (
        f"Find out what happens at {who} in {percent(late.often_ratio)} of {late.repetitions:,} repetitions: there, "
        "others wait for it the longest."
    )


def _transfer(summary: Summary, points: Sequence[SweepPoint]) -> Iterator[Advice]:
    threshold = f"transfer is at least {percent(TRANSFER_RATIO)} of a step"
    transport = summary.setting.transport
    if _is_better_whole(points) or transport in {best.values.get("transport") for best, _ in _divisions(points)}:
        return  # sweeps have found nothing to send, or no better transport
    action = f"Try another transport than {transport}: ipcbench profile replay sends these calls over others."
    for phase in summary.by_phase:
        most = max(phase, key=lambda each: each.share(TRANSFER))
        if (share := most.share(TRANSFER)) >= TRANSFER_RATIO:
            evidence = f"Transfer takes {_part(most, most.ns(TRANSFER))} at rank {most.rank}."
            yield Advice("transfer", action, evidence, share, threshold, most.phase)


def _host(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    threshold = f"no operator runs for at least {percent(HOST_RATIO)} of a step"
    fused = "" if summary.setting.is_fused or summary.is_own_model else " fused linear layers (--fused),"
    action = f"Do more in each operator: a larger batch,{fused} or a compiled model."
    for phase in summary.by_phase:
        most = max(phase, key=_host_ns)
        if (share := _host_ns(most) / most.wall_ns) >= HOST_RATIO:
            evidence = f"No operator runs for {_part(most, _host_ns(most))} at rank {most.rank} (Python, dispatch)."
            yield Advice("no operator", action, evidence, share, threshold, most.phase)


def _host_ns(each: PhaseSummary) -> float:
    """Return the time of a step outside the model, and between operators within its blocks as far as is known."""
    return each.ns(HOST) + sum(operator.ns for operator in each.operators if operator.bucket == HOST)


def _largest(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    threshold = f"one part is at least {percent(BUCKET_RATIO)} of a step"
    named = {*summary.bucket_names} - {*COMMUNICATION, HOST, OTHER}
    own = [(each, part) for each in summary.phases for part in each.buckets if part.name in named]
    each, part = max(own, key=lambda pair: pair[1].share_ratio, default=(None, None))
    if each and part and part.share_ratio >= BUCKET_RATIO:
        action = f"Look at {part.words} first: no other part of the computation can save as much."
        evidence = f"It takes {_part(each, part.ns)} at rank {each.rank}."
        yield Advice("largest part", action, evidence, None, threshold, each.phase)


def _layer(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    threshold = f"a layer takes at least {LAYER_RATIO} times the median one, and clearly more"
    for ranks in summary.by_phase:  # together: a stage of a pipeline may have only one
        layers = sorted(((each, part) for each in ranks for part in each.layers), key=lambda pair: pair[1].figure.value)
        if len(layers) < 3:
            continue
        each, part = layers[-1]
        slowest, middle = part.figure, layers[len(layers) // 2][1].figure
        if slowest.value >= LAYER_RATIO * middle.value and slowest.is_slower(middle, among=len(layers)):
            action = f"Find out what is different about {part.name} at rank {each.rank}."
            evidence = f"Without communication it takes {_part(each, slowest.value)}, a median one {_ms(middle.value)}."
            gain = (slowest.value - middle.value) / each.wall_ns
            yield Advice("slowest layer", action, evidence, gain, threshold, each.phase)


def _eager(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    threshold = f"eager attention's products are at least {percent(SCORES_RATIO)} of a step"
    for each in summary.phases if summary.setting.attention == "eager" else ():
        ns = sum(operator.ns for operator in each.operators if operator.bucket in {"scores", "attention"})
        if (share := ns / each.wall_ns) >= SCORES_RATIO:
            action = "Use --attn sdpa: it does not write the attention matrices."
            yield Advice("eager attention", action, f"They take {_part(each, ns)}.", share, threshold, each.phase)


def _memory(summary: Summary, _: Sequence[SweepPoint]) -> Iterator[Advice]:
    machine = summary.profile.machine
    sizes = [machine.get(key) for key in ("memory_limit_bytes", "memory_bytes")]
    limit = min((size for size in sizes if isinstance(size, int)), default=None)
    used = sum(memory.peak_rss_bytes for memory in summary.profile.memory)
    if limit is not None and used >= MEMORY_RATIO * limit:
        action = "Use a smaller batch, prompt or data type, or a larger machine."
        evidence = f"The ranks took up to {format_bytes(used)} together, of {format_bytes(limit)}."
        threshold = f"the ranks' peaks are at least {percent(MEMORY_RATIO)} of the memory"
        yield Advice("memory", action, evidence, None, threshold)


def _division(_: Summary, points: Sequence[SweepPoint]) -> Iterator[Advice]:
    """Yield one decision: whether to divide the model, and how; where that depends on the setting, for which."""
    found = _divisions(points)
    if not found:
        return
    ways: dict[str, list[str]] = defaultdict(list)
    for best, _rival in found:
        ways[case_words(best)].append(_setting_words(best))
    action = f"Use {next(iter(ways))}."
    if len(ways) > 1:
        each = [f"{way} for {' and '.join(settings)}" for way, settings in ways.items()]
        action = f"Use {'; '.join(each)}."
    gains = [1 - best.figures[WHOLE].estimate / rival.figures[WHOLE].estimate for best, rival in found]
    gain = max(gains)
    best, rival = found[gains.index(gain)]
    (a, b), where = (_ms(each.figures[WHOLE].estimate) for each in (best, rival)), _setting_words(best)
    evidence = f"Prompt and decoding take {a}, with {case_words(rival)} {b} (sweep, {where})."
    yield Advice("division", action, evidence, gain, "the intervals of a sweep's cases do not overlap")


def _divisions(points: Sequence[SweepPoint]) -> list[tuple[SweepPoint, SweepPoint]]:
    """Return the quickest way of each setting, whole or divided, and the quickest of the other kind, which it beats
    clearly by the time of prompt and decoding together.
    """
    groups: dict[str, list[SweepPoint]] = defaultdict(list)
    for point in points:
        if point.sweep != "bandwidth" and WHOLE in point.figures and point.rounds_count >= MIN_CLAIM_ROUNDS:
            groups[_setting_words(point)].append(point)
    found = []
    for group in groups.values():
        best, *others = sorted(group, key=lambda point: point.figures[WHOLE].estimate)
        rival = next((point for point in others if _is_whole(point) != _is_whole(best)), None)
        if rival and best.figures[WHOLE].high < rival.figures[WHOLE].low:
            found.append((best, rival))
    return found


def _is_better_whole(points: Sequence[SweepPoint]) -> bool:
    """Return whether sweeps say to use one process, in every setting in which they say anything."""
    found = _divisions(points)
    return bool(found) and all(_is_whole(best) for best, _ in found)


def _setting_words(point: SweepPoint) -> str:
    return "{seq} tokens, batch {batch}, {tokens} decoded".format(**point.values)


def _is_whole(point: SweepPoint) -> bool:
    return point.values.get("parallel") == "none"


def _ms(ns: float) -> str:
    return format_duration_ns(ns)


def _part(each: PhaseSummary, ns: float) -> str:
    return f"{_ms(ns)} of a {each.phase} step ({percent(ns / each.wall_ns)})"


def case_words(point: SweepPoint) -> str:
    """Return how a case of a sweep divides the model: `tp2 over shm, 2 threads` (of each rank; one is not said)."""
    values, threads = point.values, point.values.get("threads", 1)
    words = "1 process" if _is_whole(point) else str(values.get("parallel"))
    if values.get("transport") not in {None, "none"} and not _is_whole(point):
        words += f" over {values['transport']}"
    return words if threads == 1 else f"{words}, {threads} threads"


_RULES: Final[tuple[Rule, ...]] = (
    _busy, _waiting, _transfer, _host, _largest, _layer, _eager, _memory, _division,
)  # fmt: skip
