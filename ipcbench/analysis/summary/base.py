"""What others gain over the backend that a run was told to compare them with, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ipcbench.analysis.summary.cells import CellSummary, Metric, SettingSummary, Summary, time_of
from ipcbench.analysis.summary.wording import joined, ratio_words, size_words
from ipcbench.stats.decisions import table_prior, verdict
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Estimate, Interval, ratio, rounds_in_common

_WORDS: Mapping[Metric, tuple[str, str]] = {
    "latency": ("One-way p50", "long"),
    "round trip": ("Round trip p50", "long"),
    "throughput": ("Messages/s", "many"),
}


def base_words(summary: Summary, setting: SettingSummary) -> Iterator[str]:
    """Yield, for latency or round trips and for throughput, how many times as long, or as many, each backend has; those
    that are not told apart from the base come last. Nothing if the run has no base.
    """
    base = str(summary.info.sweep.get("base") or "")
    metrics: tuple[Metric, ...] = ("round trip" if setting.ranked_by == "round trip" else "latency", "throughput")
    has_any = False
    for metric in metrics:
        times = {cell.backend: time for cell in setting.cells if (time := _time(cell, metric)) is not None}
        compared = {
            name: time
            for name, time in times.items()
            if base in times and (rounds_in_common(time, times[base]) or 0) >= MIN_CLAIM_ROUNDS
        }
        if len(compared) > 1:
            has_any = True
            yield _sentence(summary, setting, metric, base, compared)
    if base and not has_any:
        yield f"What others gain over {base} cannot be said: it, or they, have no figure, or fewer than three rounds."


def _time(cell: CellSummary, metric: Metric) -> Estimate | None:
    return None if cell.figures is None else time_of(cell.figures, metric)


def _sentence(summary: Summary, setting: SettingSummary, metric: Metric, base: str, times: dict[str, Estimate]) -> str:
    prior = table_prior([*times.values()], summary.priors.get(metric))
    told: dict[str, Interval] = {}
    alike = []
    for name in sorted(times, key=lambda name: times[name].value):
        if verdict(times[name], times[base], prior, len(times)) != "no clear difference":
            told[name] = ratio(times[name], times[base], prior, len(times))
        elif name != base:
            alike.append(name)
    if metric == "throughput":
        told = {name: Interval(1 / each.high, 1 / each.estimate, 1 / each.low) for name, each in told.items()}
    what, much = _WORDS[metric]
    ratios = joined([f"{name} {ratio_words(each)}" for name, each in told.items()])
    parts = [f"{ratios} times as {much}"] * bool(told)
    if alike:
        parts.append(f"not told apart: {joined(alike)}")
    return f"{what} at {size_words(setting.setting)}, compared with {base}: {'; '.join(parts)}."
