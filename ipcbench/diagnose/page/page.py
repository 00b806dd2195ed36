"""The page of a diagnosis, and that of a ladder; nothing is fetched, and nothing from data is executed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from ipcbench.diagnose.attribution import PARTS
from ipcbench.diagnose.diagnosis import Diagnosis, Remedy
from ipcbench.diagnose.ladder.result import LadderResult, ladder_chart, ladder_table, time_words, times_words
from ipcbench.diagnose.page.charts import floors_chart, parts_chart
from ipcbench.diagnose.render import (
    Change,
    against_table,
    bounds,
    changes,
    compared,
    conditional,
    cost_table,
    floor_table,
    gain_words,
    interval_words,
    notes,
    nothing_helps,
    part_table,
    percent,
    remedy_table,
    sentences,
    total_words,
    unhelpful,
    unsure,
)
from ipcbench.diagnose.words import page_word, remedy_words, said, word
from ipcbench.render.charts import ChartGroup
from ipcbench.render.page import Badge, Headline, render_page
from ipcbench.render.table import Table
from ipcbench.replay.traffic import Traffic
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS
from ipcbench.trace.page.page import LABELS
from ipcbench.trace.page.words import word as trace_word
from ipcbench.trace.report.words import Language
from ipcbench.util.text import printable
from ipcbench.util.units import format_duration_ns

_TEMPLATE = files("ipcbench.diagnose.page") / "assets" / "diagnosis.html.j2"
_LARGE_RATIO = 0.5
"""Of the time: with so much of it unknown, that is the answer if nothing helps."""


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the page: whatever it has of a plot, a table, texts in cards and lines, in this order.

    Attributes:
        key: its id.
        name: in the list of sections, and its heading if it has no table.
        table: None for none.
        changes: what to change.
        lines: sentences; names and commands in them are in backticks.
        group: number of its plot among all; 0, which stands beside the headline, for none.
        is_open: whether its content is shown at once.
    """

    key: str
    name: str
    table: Table | None = None
    changes: tuple[Change, ...] = ()
    lines: tuple[str, ...] = ()
    group: int = 0
    is_open: bool = True


def diagnosis_html(diagnosis: Diagnosis, command: str, language: Language = "en", before: Traffic | None = None) -> str:
    """Return the page of a diagnosis.

    Args:
        diagnosis: the content.
        command: that makes the page.
        language: of everything but names.
        before: the same calls before, to compare with.

    Raises:
        ImportError: jinja2 is not installed.
    """
    drawn = (parts_chart(diagnosis, language), floors_chart(diagnosis, language))
    groups = [group for group in drawn if group is not None]
    source = printable(diagnosis.traffic.source)
    name = Path(source).name or source
    return _page(
        headline(diagnosis, language, before),
        list(_badges(diagnosis, language)),
        list(_parts(diagnosis, groups, before, language)),
        groups,
        (name, "" if source == name else source),
        command,
        language,
    )


def ladder_html(result: LadderResult, command: str, language: Language = "en") -> str:
    """Return the page of a ladder; otherwise as `diagnosis_html`."""
    table = ladder_table(result, language)
    parts = [
        Part("stages", page_word("section ladder", language), table),
        Part("remarks", page_word("section remarks", language), lines=table.remarks),
    ]
    groups = [ladder_chart(result, language)]
    names = (printable(result.model), table.title)
    badges = list(_ladder_badges(result, language))
    footer = page_word("ladder footer", language)
    return _page(_ladder_headline(result, language), badges, parts, groups, names, command, language, footer)


def _page(
    said_first: Headline,
    badges: Sequence[Badge],
    parts: Sequence[Part],
    groups: Sequence[ChartGroup],
    names: tuple[str, str],
    command: str,
    language: Language,
    footer: str = "",
) -> str:
    own = {key: page_word(key, language) for key in ("command", "noscript", "footer")}
    labels = {key: trace_word(key, language) for key in LABELS} | own
    return render_page(
        _TEMPLATE.read_text(encoding="utf-8"),
        [said_first],
        groups,
        language=language,
        brand=page_word("brand", language),
        labels=labels | ({"footer": footer} if footer else {}),
        sections=[*((part.key, part.name) for part in parts), ("reproduce", labels["reproduce"])],
        title=names[0],
        subtitle=names[1],
        badges=badges,
        parts=parts,
        hint=trace_word("hint", language),
        how=word("what", language),
        command=command,
    )


def headline(diagnosis: Diagnosis, language: Language, before: Traffic | None = None) -> Headline:
    """Return the remedy that saves most, that nothing does, or what is unknown; how the calls compare with those
    before, if there are any; then what was recorded.
    """
    say = partial(page_word, language=language)
    made = next(sentences(diagnosis, language))
    every = diagnosis.attributions[0] if diagnosis.attributions else None
    unknown = every.share("unknown") if every else 0.0
    rest = []
    first = [] if before is None else [compared(diagnosis, before, language)]
    if diagnosis.remedies:
        best = diagnosis.remedies[0]
        name, _ = remedy_words(best.key, language)
        after = total_words(best, language) if best.bound else interval_words(best.predicted_ns)
        key = "best judged" if unsure(diagnosis) else "best"
        lead = say(key, name=name, before=format_duration_ns(_before_ns(diagnosis, best)), after=after)
        rest.append(say("saves", gain=_with_unit(gain_words(best, language), "%")))
        if best.note:
            rest.append(say("assumed", note=said(best.note, language)))
    elif diagnosis.traffic.takes_turns:
        lead = nothing_helps(diagnosis, language)
    elif not any(each.backend and each.is_sure for each in diagnosis.others):
        lead = say("no rounds")
    elif unknown >= _LARGE_RATIO:
        lead = say("mostly unknown", share=percent(unknown))
    else:
        lead = nothing_helps(diagnosis, language)
    if every:
        part = max(PARTS, key=lambda part: every.parts_ns[part])
        rest.append(say("largest", part=word(part, language), share=percent(every.share(part))))
    return Headline(_joined([lead, *rest, *first, made], language))


def _joined(texts: Sequence[str], language: Language) -> str:
    return ("" if language == "zh" else " ").join(texts)


def _before_ns(diagnosis: Diagnosis, remedy: Remedy) -> float:
    """Return the recorded time; of calls that nobody made, that of their replay as they are."""
    if diagnosis.traffic.is_timed or remedy.gain_ratio.estimate >= 1:
        return diagnosis.recorded_ns
    return remedy.predicted_ns.estimate / (1 - remedy.gain_ratio.estimate)


def _with_unit(figure: str, unit: str) -> str:
    """Return a figure with its unit before its interval, if it has one."""
    middle, bracket, ends = figure.partition(" [")
    return f"{middle} {unit}{bracket}{ends}"


def _badges(diagnosis: Diagnosis, language: Language) -> Iterator[Badge]:
    say = partial(page_word, language=language)
    traffic, count = diagnosis.traffic, len(diagnosis.remedies)
    yield Badge(say("badge calls", count=f"{traffic.calls_count:,}"), "plain", "remarks")
    if traffic.transports:
        yield Badge(say("badge over", word=printable(traffic.transports[0])), "plain", "remarks")
    else:
        yield Badge(say("badge over unknown"), "warn", "remarks")
    yield Badge(say("badge helping", count=count) if count else say("badge none"), "good" if count else "plain", "help")
    if diagnosis.attributions and not traffic.server_known:
        yield Badge(say("badge server"), "warn", "where")
    if diagnosis.failures:
        yield Badge(say("badge failed", count=len(diagnosis.failures)), "warn", "remarks")


def _parts(
    diagnosis: Diagnosis, groups: Sequence[ChartGroup], before: Traffic | None, language: Language
) -> Iterator[Part]:
    say = partial(page_word, language=language)
    if before is not None and diagnosis.attributions:
        table = against_table(diagnosis, before, language)
        yield Part("against", say("section against"), table, lines=table.remarks)
    if diagnosis.attributions:
        lines = tuple(map(printable, notes(diagnosis, language)))
        yield Part("where", say("section where"), part_table(diagnosis, language), lines=lines)
    yield _help(diagnosis, language)
    if chosen := conditional(diagnosis):
        table = remedy_table(diagnosis, chosen, word("conditional", language), language)
        yield Part("conditional", say("section conditional"), table, tuple(changes(diagnosis, chosen, language)))
    for key, chosen in (("unsure", unsure(diagnosis)), ("others", unhelpful(diagnosis))):
        if chosen:
            yield Part(key, say(f"section {key}"), remedy_table(diagnosis, chosen, word(key, language), language))
    if diagnosis.floors:
        place = next((number for number, group in enumerate(groups) if group.key == "floors"), 0)
        yield Part("floors", say("section floors"), floor_table(diagnosis, language), group=place)
    yield Part("costs", say("section costs"), cost_table(diagnosis, language), is_open=False)
    _, *remarks = map(printable, sentences(diagnosis, language))
    yield Part("remarks", say("section remarks"), lines=tuple(remarks))


def _help(diagnosis: Diagnosis, language: Language) -> Part:
    """Return the changes that help, the best one marked, and what is known within bounds."""
    chosen = diagnosis.remedies
    table = remedy_table(diagnosis, chosen, word("remedies", language), language)
    lines = tuple(map(printable, bounds(diagnosis, language)))
    return Part(
        "help",
        page_word("section help", language),
        replace(table, best_rows=frozenset({0})) if chosen else None,
        tuple(changes(diagnosis, chosen, language)),
        lines if chosen else (nothing_helps(diagnosis, language), *lines),
    )


def _ladder_headline(result: LadderResult, language: Language) -> Headline:
    """Return the times of the first stage and of the last one of a single stream, and what lies between."""
    say = partial(page_word, language=language)
    done = [stage for stage in result.stages if stage.time_s is not None]
    first, last = done[0], [stage for stage in done if stage.streams_count == 1][-1]
    name, time = said(last.name, language), _with_unit(time_words(last), "s")
    if last.first_gain_ratio is None:
        return Headline(say("ladder one", name=name, last=time))
    begin = _with_unit(time_words(first), "s")
    lead = say("ladder best", name=name, before=said(first.name, language), first=begin, last=time)
    if last.first_gain_ratio.interval is None:
        return Headline(_joined([lead, say("ladder few")], language))
    texts = [lead, say("ladder gain", gain=times_words(last.first_gain_ratio))]
    steps = [(gain, stage.name) for stage in done if (gain := stage.gain_ratio) and stage.verdict == "faster"]
    if steps:
        gain, step = max(steps, key=lambda each: each[0].estimate)
        texts.append(say("ladder step", name=said(step, language), gain=times_words(gain)))
    return Headline(_joined(texts, language))


def _ladder_badges(result: LadderResult, language: Language) -> Iterator[Badge]:
    say = partial(page_word, language=language)
    left_out = sum(bool(stage.left_out) for stage in result.stages)
    few = result.rounds_count < MIN_CLAIM_ROUNDS
    yield Badge(say("badge tokens", count=f"{result.tokens_count:,}"), "plain", "remarks")
    yield Badge(say("badge rounds", count=result.rounds_count), "warn" if few else "plain", "remarks")
    yield Badge(say("badge full" if result.is_full else "badge scaled"), "plain", "remarks")
    if left_out:
        yield Badge(say("badge left out", count=left_out), "warn", "remarks")
