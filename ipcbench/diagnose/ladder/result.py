"""What the ladder came to: times of each stage, what it brings, and its table, chart and JSON fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ipcbench.diagnose.ladder.scale import Scale
from ipcbench.diagnose.ladder.stages import KEPT, Stage, traffic_of
from ipcbench.diagnose.words import page_word, said, word
from ipcbench.models import Model
from ipcbench.render.charts import Axis, Chart, ChartGroup, Point, Series
from ipcbench.render.table import NOT_MEASURED, Table, make_columns, number
from ipcbench.stats.bootstrap import median_estimate
from ipcbench.stats.decisions import Verdict, verdict
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, UNSURE_DIGITS, Estimate, Interval, ratio
from ipcbench.trace.report.words import Language
from ipcbench.util.units import format_significant

_SEED = 1
"""Of the bootstrap."""


@dataclass(slots=True)
class Rounds:
    """Measurements of one stage.

    Attributes:
        times_s: time of a forward pass by the number of the round.
        touched_s: for how long of it tensors were filled and read.
        left_out: why there are no more of them; empty if there is no reason.
    """

    stage: Stage
    times_s: dict[int, float] = field(default_factory=dict)
    touched_s: dict[int, float] = field(default_factory=dict)
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class StageResult:
    """One stage.

    Attributes:
        number: from 1.
        label, name, dtype, is_fused, streams_count: see `Stage`.
        calls_count, moved_bytes: of one whole forward pass, all layers.
        measured_bytes: of the part of it that was carried out in a turn, once.
        rounds_s: time of a forward pass in each round, s; of several streams, the time of all passes / their number.
        time_s: the median of the rounds; None if there is none.
        time_interval_s: with its 95 % interval; None with fewer than three rounds.
        touched_s: for how long of it senders filled tensors and receivers read them, the median of the rounds.
        before: name of the last stage before it that was measured; empty if there is none.
        gain_ratio: time of that stage / its own. Over rounds that both have; with its 95 % interval if there are three.
        verdict: of its time against that stage's; None where nothing can be claimed.
        first_gain_ratio: time of the first stage that was measured / its own.
        left_out: why it has no rounds, or no more; empty if there is no reason.
    """

    number: int
    label: str
    name: str
    dtype: str
    is_fused: bool
    streams_count: int
    calls_count: int
    moved_bytes: int
    measured_bytes: int
    rounds_s: tuple[float, ...]
    time_s: float | None
    time_interval_s: Interval | None
    touched_s: float | None
    before: str
    gain_ratio: Gain | None
    verdict: Verdict | None
    first_gain_ratio: Gain | None
    left_out: str


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times quicker a stage is than another: the medians' ratio, and its 95 % interval if it is known."""

    estimate: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class LadderResult:
    """The whole ladder.

    Attributes:
        model: its name.
        tokens_count: of the sequence that all figures are of.
        asked_tokens_count: of the one that was asked for.
        layers_count: of the model.
        measured_layers_count: those of them that were carried out; the time in them is multiplied to that of all.
        is_full: whether all was carried out that was asked for.
        rounds_count: the most that a stage has.
        wall_s: how long it took to measure all.
        notes: what the reader must know, one sentence each.
    """

    model: str
    tokens_count: int
    asked_tokens_count: int
    layers_count: int
    measured_layers_count: int
    is_full: bool
    rounds_count: int
    wall_s: float
    stages: tuple[StageResult, ...]
    notes: tuple[str, ...]


def conclude(model: Model, tokens: int, scale: Scale, measured: Sequence[Rounds], wall_s: float) -> LadderResult:
    """Return the result of what was measured, of which at least one stage has a round."""
    generator = np.random.default_rng(_SEED)
    estimates = [_estimate(rounds, generator) for rounds in measured]
    done = [place for place, rounds in enumerate(measured) if rounds.times_s]
    stages = tuple(_stage(model, scale, place, measured, estimates, done) for place in range(len(measured)))
    layers_count = model.num_hidden_layers
    result = LadderResult(
        model=model.name,
        tokens_count=scale.tokens_count,
        asked_tokens_count=tokens,
        layers_count=layers_count,
        measured_layers_count=scale.layers_count,
        is_full=(scale.tokens_count, scale.layers_count) == (tokens, layers_count),
        rounds_count=max(len(rounds.times_s) for rounds in measured),
        wall_s=wall_s,
        stages=stages,
        notes=(),
    )
    return replace(result, notes=tuple(_notes(result)))


def _estimate(rounds: Rounds, generator: np.random.Generator) -> Estimate | None:
    """Return the time of a stage; None with a single round or none."""
    estimate = median_estimate(list(rounds.times_s.values()), generator) if rounds.times_s else None
    logs = {str(index): np.log([time_s]) for index, time_s in rounds.times_s.items()}
    return estimate and replace(estimate, rounds=logs)


def _stage(
    model: Model,
    scale: Scale,
    place: int,
    measured: Sequence[Rounds],
    estimates: Sequence[Estimate | None],
    done: Sequence[int],
) -> StageResult:
    stage, times_s = measured[place].stage, tuple(measured[place].times_s.values())
    traffic, estimate = traffic_of(model, scale.tokens_count, stage), estimates[place]
    before = max((other for other in done if other < place and times_s), default=None)
    first = done[0] if times_s and done[0] < place else None
    claims = len(times_s) >= MIN_CLAIM_ROUNDS and estimate is not None
    against = None if before is None else estimates[before]
    gain = None if before is None else _gain(measured, estimates, before, place)
    return StageResult(
        number=place + 1,
        label=stage.label,
        name=stage.name,
        dtype=stage.dtype,
        is_fused=stage.is_fused,
        streams_count=stage.streams_count,
        calls_count=traffic.calls_count(model.num_hidden_layers),
        moved_bytes=traffic.moved_bytes(model.num_hidden_layers),
        measured_bytes=stage.streams_count * traffic.moved_bytes(scale.layers_count),
        rounds_s=times_s,
        time_s=float(np.median(times_s)) if times_s else None,
        time_interval_s=estimate.interval() if claims and estimate else None,
        touched_s=float(np.median(list(measured[place].touched_s.values()))) if times_s else None,
        before="" if before is None else measured[before].stage.name,
        gain_ratio=gain,
        verdict=verdict(estimate, against) if estimate and against and gain and gain.interval else None,
        first_gain_ratio=None if first is None else _gain(measured, estimates, first, place),
        left_out=measured[place].left_out,
    )


def _gain(measured: Sequence[Rounds], estimates: Sequence[Estimate | None], other: int, place: int) -> Gain:
    """Return how many times quicker the stage at `place` is than another."""
    theirs, own = estimates[other], estimates[place]
    common = measured[other].times_s.keys() & measured[place].times_s.keys()
    if theirs and own and len(common) >= MIN_CLAIM_ROUNDS:
        interval = ratio(theirs, own)
        return Gain(interval.estimate, interval)
    medians = (float(np.median(list(measured[index].times_s.values()))) for index in (other, place))
    return Gain(next(medians) / next(medians), None)


def _notes(result: LadderResult) -> list[str]:
    done = [stage for stage in result.stages if stage.time_s is not None]
    notes = []
    last = max((stage for stage in done if stage.streams_count == 1), key=lambda stage: stage.number, default=None)
    gain = last.first_gain_ratio if last else None
    if last and gain and gain.interval and gain.interval.low > 1.0:
        notes.append(f"{last.name}: a forward pass is {times_words(gain)} times as fast as with {done[0].name}.")
    if result.rounds_count < MIN_CLAIM_ROUNDS:
        notes.append(f"Fewer than {MIN_CLAIM_ROUNDS} rounds: no intervals, and nothing is claimed.")
    notes.append(_done(result))
    notes.append(
        "Nobody computes. At every stage the sender fills each tensor once, in place where it is sent from, and the "
        "receiver reads it once; how long that takes is part of the time, and in the table. Work between the calls "
        "would leave caches colder: small messages gain most by its absence."
    )
    if len({stage.dtype for stage in done}) > 1:
        notes.append("bfloat16 has 8 significant bits: half the bytes, and other results than float32.")
    if any(stage.is_fused for stage in done):
        notes.append(f"Fused, these stay on the server, which then also computes what lies between: {KEPT}.")
    if any(stage.streams_count > 1 for stage in done):
        notes.append("Two streams: the time of two passes of two clients at once / 2, a throughput, not a latency.")
    notes.append("A single chain of calls: each needs the reply to the one before, so overlap gains 0.")
    notes += [f"{stage.name}: left out{_after(stage)}: {stage.left_out}" for stage in result.stages if stage.left_out]
    return notes


def _after(stage: StageResult) -> str:
    return f" after {len(stage.rounds_s)} rounds" if stage.rounds_s else ""


def _done(result: LadderResult) -> str:
    """Return which part of the pass was carried out."""
    if result.is_full:
        return f"All calls of all {result.layers_count} layers were carried out, with all their bytes."
    layers, measured = result.layers_count, result.measured_layers_count
    text = f"Scaled down: carried out were {measured} of {layers} layers"
    text += f" (time in layers × {format_significant(layers / measured)}), embedding and head once"
    if result.tokens_count < result.asked_tokens_count:
        text += f"; and {result.tokens_count:,} of {result.asked_tokens_count:,} tokens: all figures are of these"
    return f"{text}."


def times_words(gain: Gain) -> str:
    """Return how many times quicker, with the interval if it is known."""
    if gain.interval is None:
        return format_significant(gain.estimate, UNSURE_DIGITS)
    digits = gain.interval.digits
    low, middle, high = (
        format_significant(value, digits) for value in (gain.interval.low, gain.estimate, gain.interval.high)
    )
    return f"{middle} [{low}, {high}]"


def time_words(stage: StageResult) -> str:
    """Return the time of a forward pass in s, with its interval if it is known."""
    if stage.time_s is None:
        return NOT_MEASURED
    interval = stage.time_interval_s
    if interval is None:
        return format_significant(stage.time_s, UNSURE_DIGITS)
    low, middle, high = (
        format_significant(value, interval.digits) for value in (interval.low, interval.estimate, interval.high)
    )
    return f"{middle} [{low}, {high}]"


def ladder_table(result: LadderResult, language: Language = "en") -> Table:
    """Return the stages with their times, and what each brings."""
    say = partial(page_word, language=language)
    heads = ("", say("stage"), say("pass head"), say("touched"), "MiB", word("calls", language), say("before head"),
             say("verdict"), say("first head"))  # fmt: skip
    rows = [
        (
            str(stage.number),
            said(stage.name, language),
            time_words(stage),
            number(stage.touched_s, digits=UNSURE_DIGITS),
            f"{stage.moved_bytes / 2**20:,.1f}",
            f"{stage.calls_count:,}",
            times_words(stage.gain_ratio) if stage.gain_ratio else NOT_MEASURED,
            said(stage.verdict, language) if stage.verdict else NOT_MEASURED,
            times_words(stage.first_gain_ratio) if stage.first_gain_ratio else NOT_MEASURED,
        )
        for stage in result.stages
    ]
    columns = make_columns(heads, left=(1, 7), name=1)
    title = say("ladder title", model=result.model, tokens=f"{result.tokens_count:,}")
    return Table(title, columns, tuple(rows), remarks=tuple(said(note, language) for note in result.notes))


def ladder_chart(result: LadderResult, language: Language = "en") -> ChartGroup:
    """Return a chart of the times of all stages that were measured."""
    say = partial(page_word, language=language)
    ticks = tuple((float(stage.number), said(stage.label, language)) for stage in result.stages)
    points = tuple(_point(stage, stage.time_s, language) for stage in result.stages if stage.time_s is not None)
    tokens = f"{result.tokens_count:,}"
    chart = Chart(
        title=say("ladder"),
        setting=say("ladder setting", model=result.model, tokens=tokens, rounds=result.rounds_count),
        choice="",
        x=Axis(say("stage axis"), say("in order"), log=False, ticks=ticks),
        y=Axis(say("pass"), "s", log=True),
        series=(Series(say("pass"), 0, "band", points),),
    )
    return ChartGroup("ladder", say("ladder"), say("ladder reading"), (chart,))


def _point(stage: StageResult, time_s: float, language: Language) -> Point:
    moved, calls = f"{stage.moved_bytes / 2**20:,.1f}", f"{stage.calls_count:,}"
    lines = [
        said(stage.name, language),
        f"{time_words(stage)} s",
        page_word("point", language, moved=moved, calls=calls),
    ]
    if stage.gain_ratio:
        before = said(stage.before, language)
        lines.append(page_word("point gain", language, gain=times_words(stage.gain_ratio), before=before))
    interval = stage.time_interval_s
    ends = (interval.low, interval.high) if interval else (None, None)
    return Point(float(stage.number), time_s, tuple(lines), *ends)


def ladder_fields(result: LadderResult) -> dict[str, Any]:
    """Return all figures as plain values, fit for JSON; None is unknown."""
    return asdict(result)
