"""A diagnosis as text, Markdown, JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ipcbench.diagnose.attribution import PARTS, Attribution, attribute
from ipcbench.diagnose.diagnosis import (
    LEAST_REPLAYED_CALLS,
    SOURCES,
    TRANSPORT,
    USUAL_SOURCE,
    Diagnosis,
    Floor,
    Remedy,
    source_of,
)
from ipcbench.diagnose.words import remedy_words, said, word
from ipcbench.render.document import document
from ipcbench.render.table import NOT_MEASURED, Table, make_columns, number
from ipcbench.render.text import aligned, bullets, csv_text, escape, markdown_table, paragraphs
from ipcbench.replay.traffic import Traffic
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS, Interval
from ipcbench.trace.report.words import Language
from ipcbench.util.shell import shell_command
from ipcbench.util.text import printable
from ipcbench.util.units import format_bytes, format_duration_ns, format_significant

_MAYBE_UNKNOWN = ("excess", "queue", "server")
"""Parts that `unknown` may hold as well."""
_DOUBTFUL_RATIO = 0.1
_CSV_COLUMNS = ("remedy", "backend", "helps", "rounds_count", "predicted_ns", "predicted_low_ns", "predicted_high_ns",
                "gain_ratio", "gain_low_ratio", "gain_high_ratio", "bound", "note", "condition")  # fmt: skip


def percent(ratio: float) -> str:
    """Return a share, which may be negative, in percent."""
    return f"{'−' if ratio < 0 else ''}{format_significant(100 * abs(ratio))} %"


def gain_words(remedy: Remedy, language: Language = "en") -> str:
    """Return the percentage that a change saves, with its interval if enough was replayed for one."""
    gain = remedy.gain_ratio
    texts = [f"{'−' if each < 0 else ''}{format_significant(100 * abs(each), 3)}" for each in
             (gain.estimate, gain.low, gain.high)]  # fmt: skip
    text = f"{texts[0]} [{texts[1]}, {texts[2]}]" if remedy.backend and remedy.is_sure else texts[0]
    return _say(remedy.bound, language=language, figure=text) if remedy.bound else text


def total_words(remedy: Remedy, language: Language) -> str:
    """Return how long all calls would take after a change."""
    total = format_duration_ns(remedy.predicted_ns.estimate)
    other = "at least" if remedy.bound == "at most" else "at most"
    return _say(other, language=language, figure=total) if remedy.bound else total


def remedy_table(diagnosis: Diagnosis, chosen: Sequence[Remedy], title: str, language: Language) -> Table:
    """Return changes with their predicted totals and gains."""
    heads = [word(key, language) for key in ("remedy", "predicted", "gain", "basis")]
    rows = []
    for remedy in chosen:
        name, _ = remedy_words(remedy.key, language)
        rounds = word("round head" if remedy.rounds_count == 1 else "rounds head", language)
        rounds = rounds.format(count=remedy.rounds_count)
        basis = rounds if remedy.backend else word("recording", language)
        rows.append((name, total_words(remedy, language), gain_words(remedy, language), basis))
    return Table(title, make_columns(heads), tuple(rows))


def part_table(diagnosis: Diagnosis, language: Language) -> Table:
    """Return where the time of all calls and of each method went."""
    used = [part for part in PARTS if any(each.parts_ns[part] for each in diagnosis.attributions)]
    heads = [word(key, language) for key in ("method", "calls", "mean", *used)]
    rows = [
        (
            printable(each.name) or word("all", language),
            f"{each.calls_count:,}",
            format_duration_ns(each.total_ns / each.calls_count),
            *(number(100 * each.share(part), digits=2) if each.parts_ns[part] else NOT_MEASURED for part in used),
        )
        for each in diagnosis.attributions
    ]
    return Table(word("where", language), make_columns(heads), tuple(rows))


def floor_table(diagnosis: Diagnosis, language: Language) -> Table:
    """Return the floors by size, and of all calls together."""
    heads = [word("size", language), *(floor.backend for floor in diagnosis.floors)]
    sizes = diagnosis.floors[0].table.sizes_bytes
    rows = [
        (format_bytes(size), *(format_duration_ns(floor.table.one_way_ns[place]) for floor in diagnosis.floors))
        for place, size in enumerate(sizes)
    ]
    rows.append((word("all calls", language), *(interval_words(floor.all_calls_ns) for floor in diagnosis.floors)))
    return Table(word("floors", language), make_columns(heads), tuple(rows))


def interval_words(interval: Interval) -> str:
    """Return a time with its interval, if it has one."""
    estimate = format_duration_ns(interval.estimate)
    if interval.low == interval.high:
        return estimate
    return f"{estimate} [{format_duration_ns(interval.low)}, {format_duration_ns(interval.high)}]"


def cost_table(diagnosis: Diagnosis, language: Language) -> Table:
    """Return what copies, codecs and compression cost."""
    costs, heads = diagnosis.costs, [word(key, language) for key in ("codec", "size", "pack", "unpack")]
    rows = []
    for copy in costs.copies:
        size = format_bytes(copy.size_bytes)
        rows.append((word("copy hot", language), size, interval_words(copy.hot_ns), NOT_MEASURED))
        rows.append((word("copy cold", language), size, interval_words(copy.cold_ns), NOT_MEASURED))
    rows += [(each.codec, format_bytes(each.size_bytes), interval_words(each.pack_ns), interval_words(each.unpack_ns))
             for each in costs.codecs]  # fmt: skip
    for compression in costs.compression:
        if compression.ratio is None or compression.compress_ns is None or compression.expand_ns is None:
            rows.append((compression.method, said(compression.remark, language), NOT_MEASURED, NOT_MEASURED))
            continue
        after = f"{percent(compression.ratio)} {word('ratio', language)}"
        rows.append(
            (compression.method, after, interval_words(compression.compress_ns), interval_words(compression.expand_ns))
        )
    return Table(word("costs", language), make_columns(heads, left=(0,)), tuple(rows))


def sentences(diagnosis: Diagnosis, language: Language) -> Iterator[str]:
    """Yield what was recorded and replayed, and what limits the result."""
    say = partial(_say, language=language)
    traffic, clients = diagnosis.traffic, len(diagnosis.traffic.threads)
    rounds = max((each.rounds_count for each in (*diagnosis.remedies, *diagnosis.others)), default=0)
    moved = sum(int((each.sent_bytes + each.recv_bytes).sum()) for each in traffic.threads)
    yield say(
        "made" if traffic.is_timed else "untimed",
        calls=traffic.calls_count,
        clients=say("client") if clients == 1 else say("clients", count=clients),
        took=format_duration_ns(diagnosis.recorded_ns),
        moved=f"{format_significant(moved / 2**20)} MiB",
        rounds=say("round") if rounds == 1 else say("rounds", count=rounds),
        source=diagnosis.source,
    )
    spoken = next((name for name in traffic.transports if name.upper().partition("+")[0] in SOURCES), "")
    yield say("says", word=spoken, source=diagnosis.source) if spoken else say("says nothing", source=diagnosis.source)
    if spoken.upper().startswith("IPC"):
        yield say("ipc already")
    longest = max(len(thread.method) for thread in traffic.threads)
    if diagnosis.replayed_count < longest:
        count = diagnosis.replayed_count
        yield say("first call") if count == 1 else say("first calls", count=count)
    if 0 < rounds < MIN_CLAIM_ROUNDS:
        yield say("few")
    if any(each.has_few_calls for each in diagnosis.others):
        yield say("few calls", count=LEAST_REPLAYED_CALLS)
    yield from (said(remark, language) for remark in diagnosis.remarks)
    yield from (
        say("failed", name=remedy_words(name, language)[0], reason=said(reason, language))
        for name, reason in diagnosis.failures.items()
    )


def _say(key: str, *, language: Language, **values: Any) -> str:
    return word(key, language).format(**values)


def notes(diagnosis: Diagnosis, language: Language) -> Iterator[str]:
    """Yield what the parts of the time say."""
    say = partial(_say, language=language)
    if not diagnosis.attributions:
        return
    every = diagnosis.attributions[0]
    yield say("legend", source=diagnosis.source)
    yield say("serialization", share=percent(every.share("serialize", "deserialize")))
    yield from quicker(diagnosis, language)
    traffic = diagnosis.traffic
    busy_ns = max(traffic.in_turn_ns([int(np.maximum(each.server_ns, 0).sum()) for each in traffic.threads]))
    if len(traffic.services) < len(traffic.threads) and 2 * busy_ns > traffic.recorded_ns:
        yield say("busy", share=percent(busy_ns / traffic.recorded_ns))
    if not diagnosis.traffic.server_known:
        yield say("unknown server")


def quicker(diagnosis: Diagnosis, language: Language) -> Iterator[str]:
    """Yield that many calls took less than the floor here, if they did."""
    every = diagnosis.attributions[0]
    if every.quicker_count > _DOUBTFUL_RATIO * every.calls_count:
        yield _say("quicker", language=language, count=every.quicker_count)


@dataclass(frozen=True, slots=True)
class Change:
    """What to change.

    Attributes:
        name: of the remedy.
        what: to do, a sentence.
        command: that tries it; empty for none.
    """

    name: str
    what: str
    command: str

    @property
    def text(self) -> str:
        """All of it in a line."""
        return f"{self.name}: {self.what}{f' `{self.command}`' if self.command else ''}"


def conditional(diagnosis: Diagnosis) -> list[Remedy]:
    """Return the remedies that help if their condition holds."""
    return [each for each in diagnosis.others if each.condition and replace(each, condition="").helps]


def unhelpful(diagnosis: Diagnosis) -> list[Remedy]:
    """Return the remedies that do not clearly help, whatever holds."""
    return [each for each in diagnosis.others if each.is_sure and not replace(each, condition="").helps]


def unsure(diagnosis: Diagnosis) -> list[Remedy]:
    """Return the remedies of which too little was replayed to tell whether they help."""
    return [each for each in diagnosis.others if not each.is_sure]


def nothing_helps(diagnosis: Diagnosis, language: Language) -> str:
    """Return that nothing helps, or, if not enough was replayed, or the clients take turns, that this is not known."""
    if diagnosis.traffic.takes_turns:
        return word("turns", language)
    if not any(each.backend and each.is_sure for each in diagnosis.others):
        return word("nothing known", language)
    return word("nothing judged" if unsure(diagnosis) else "nothing helps", language)


def changes(diagnosis: Diagnosis, chosen: Sequence[Remedy], language: Language) -> Iterator[Change]:
    """Yield what to change for each of some remedies, and how to try it."""
    for remedy in chosen:
        name, what = remedy_words(remedy.key, language)
        terms = [said(remedy.note, language)] if remedy.note else []
        if remedy.condition:
            terms.append(_say("if", language=language, condition=said(remedy.condition, language)))
        if terms:
            what += _say("terms", language=language, terms=word("joint", language).join(terms))
        yield Change(name, what + word("end", language), _how(diagnosis, remedy))


def bounds(diagnosis: Diagnosis, language: Language) -> Iterator[str]:
    """Yield what is only known within bounds, or not at all."""
    say = partial(_say, language=language)
    every = diagnosis.attributions[0] if diagnosis.attributions else None
    if every is not None and not diagnosis.traffic.server_known:
        for remedy in (each for each in (*diagnosis.remedies, *diagnosis.others) if each.is_sure):
            floor = next((each for each in diagnosis.floors if f"{TRANSPORT}{each.backend}" == remedy.key), None)
            if floor is not None:
                away = sum(every.parts_ns[part] for part in ("fixed", "bytes", "unknown", "excess", "queue"))
                most = max(0.0, (away - floor.all_calls_ns.estimate) / every.total_ns)
                name, _ = remedy_words(remedy.key, language)
                yield say("most", name=name, least=percent(max(0.0, remedy.gain_ratio.low)), most=percent(most))
    if every is not None:
        client = every.total_ns - sum(every.parts_ns[part] for part in ("server", "queue", "unknown"))
        shorter = min(client, every.total_ns - client)
        yield say("chain", most=percent(shorter / max(every.total_ns, 1)))
    if diagnosis.remedies and (count := len(unsure(diagnosis))):
        yield say("judged one") if count == 1 else say("judged", count=count)
    if not diagnosis.costs.compression:
        yield say("no sample")


def _how(diagnosis: Diagnosis, remedy: Remedy) -> str:
    if not remedy.key.startswith(TRANSPORT) or not diagnosis.traffic.is_timed:
        return ""  # there may be no file of calls that nobody made
    more = ["--recorded-over", diagnosis.source]
    return shell_command("ipcbench", "replay", diagnosis.traffic.source, "--backends", remedy.backend, *more)


def tables(diagnosis: Diagnosis, language: Language, before: Traffic | None) -> Iterator[tuple[Table, tuple[str, ...]]]:
    """Yield the tables, each with the lines under it; the comparison with the calls before comes first."""
    if before is not None:
        table = against_table(diagnosis, before, language)
        yield table, (compared(diagnosis, before, language), *table.remarks)
    if diagnosis.attributions:
        yield part_table(diagnosis, language), tuple(notes(diagnosis, language))
    say = partial(word, language=language)
    helping = remedy_table(diagnosis, diagnosis.remedies, say("remedies"), language)
    nothing = () if diagnosis.remedies else (nothing_helps(diagnosis, language),)
    what = (each.text for each in changes(diagnosis, diagnosis.remedies, language))
    yield helping, (*nothing, *what, *bounds(diagnosis, language))
    if chosen := conditional(diagnosis):
        what = (each.text for each in changes(diagnosis, chosen, language))
        yield remedy_table(diagnosis, chosen, say("conditional"), language), tuple(what)
    for key, chosen in (("unsure", unsure(diagnosis)), ("others", unhelpful(diagnosis))):
        if chosen:
            yield remedy_table(diagnosis, chosen, say(key), language), ()
    if diagnosis.floors:
        yield floor_table(diagnosis, language), ()
    yield cost_table(diagnosis, language), ()


def as_text(diagnosis: Diagnosis, language: Language = "en", before: Traffic | None = None) -> str:
    """Return the diagnosis for a terminal, beside the calls before if there are any."""
    lines = [_say("title", language=language, source=printable(diagnosis.traffic.source)), ""]
    lines += paragraphs([printable(line) for line in sentences(diagnosis, language)])
    for table, below in tables(diagnosis, language, before):
        lines += ["", table.title, "-" * len(table.title)]
        lines += aligned(table, indent="  ") if table.rows else []
        lines += paragraphs([printable(line) for line in below])
    return "\n".join(lines) + "\n"


def as_markdown(diagnosis: Diagnosis, language: Language = "en", before: Traffic | None = None) -> str:
    """Return the diagnosis as Markdown, beside the calls before if there are any."""
    title = _say("title", language=language, source=escape(printable(diagnosis.traffic.source)))
    parts = [f"# {title}", bullets(map(printable, sentences(diagnosis, language)))]
    for table, below in tables(diagnosis, language, before):
        parts += [f"## {table.title}", *([markdown_table(table)] if table.rows else [])]
        parts += [bullets(map(printable, below))] if below else []
    return "\n\n".join(parts) + "\n"


def as_json(diagnosis: Diagnosis, language: Language = "en", before: Traffic | None = None) -> str:
    """Return all figures as a JSON object; times in ns. The language makes no difference."""
    traffic = diagnosis.traffic
    is_known = traffic.server_known
    values: dict[str, Any] = {
        "source": traffic.source,
        "transports": list(traffic.transports),
        "stands_for_it": diagnosis.source,
        "clients_count": len(traffic.threads),
        "calls_count": traffic.calls_count,
        "replayed_calls_count": diagnosis.replayed_count,
        "recorded_ns": diagnosis.recorded_ns if traffic.is_timed else None,
        "server_known": is_known if traffic.is_timed else None,
        "attributions": [_attribution_fields(each, is_known) for each in diagnosis.attributions],
        "before": None if before is None else _before_fields(diagnosis, before),
        "remedies": [_remedy_fields(each) for each in (*diagnosis.remedies, *diagnosis.others)],
        "floors": [_floor_fields(each) for each in diagnosis.floors],
        "costs": asdict(diagnosis.costs),
        "remarks": list(diagnosis.remarks),
        "failures": dict(diagnosis.failures),
    }
    return document("diagnosis", _with_unknown_ends(values))


def _with_unknown_ends(value: Any) -> Any:
    """Return fields whose intervals have null for the ends that nobody knows."""
    if isinstance(value, dict):
        if value.keys() == {"estimate", "low", "high"} and value["low"] == value["high"]:
            return {**value, "low": None, "high": None}
        return {key: _with_unknown_ends(each) for key, each in value.items()}
    return [_with_unknown_ends(each) for each in value] if isinstance(value, list | tuple) else value


def _attribution_fields(found: Attribution, server_known: bool) -> dict[str, Any]:
    """Return where time went; what may be in `unknown` as well is null if nothing of it is known."""
    hidden = () if server_known else _MAYBE_UNKNOWN
    parts = {f"{part}_ns": None if part in hidden and not found.parts_ns[part] else found.parts_ns[part]
             for part in PARTS}  # fmt: skip
    return {
        "method": found.name or None,
        "calls_count": found.calls_count,
        "moved_bytes": found.moved_bytes,
        "total_ns": found.total_ns,
        **parts,
        "quicker_count": found.quicker_count,
    }


def _before_fields(diagnosis: Diagnosis, before: Traffic) -> dict[str, Any]:
    found, source, has_floor = _attributed(diagnosis, before)
    return {
        "source": before.source,
        "stands_for_it": source,
        "floor_known": has_floor,
        "attribution": _attribution_fields(found, before.server_known),
    }


def _remedy_fields(remedy: Remedy) -> dict[str, Any]:
    rounds_count, bound = remedy.rounds_count if remedy.backend else None, remedy.bound or None
    values = {**asdict(remedy), "backend": remedy.backend or None, "rounds_count": rounds_count}
    return {**values, "helps": remedy.helps, "bound": bound}


def _floor_fields(floor: Floor) -> dict[str, Any]:
    table = floor.table
    return {
        "backend": floor.backend,
        "sizes": [
            {"size_bytes": size, "one_way_ns": time_ns}
            for size, time_ns in zip(table.sizes_bytes, table.one_way_ns, strict=True)
        ],
        "all_calls_ns": asdict(floor.all_calls_ns),
    }


def as_csv(diagnosis: Diagnosis, language: Language = "en", before: Traffic | None = None) -> str:
    """Return the remedies as CSV; times in ns, ends of intervals empty where nobody knows them.

    Language and calls before make no difference.
    """
    rows = [_csv_row(each) for each in (*diagnosis.remedies, *diagnosis.others)]
    return csv_text(rows, _CSV_COLUMNS)


def _csv_row(remedy: Remedy) -> dict[str, Any]:
    predicted, gain = remedy.predicted_ns, remedy.gain_ratio
    ends = [round(predicted.low), round(predicted.high)], [f"{gain.low:.6f}", f"{gain.high:.6f}"]
    known = ends if predicted.low < predicted.high else (["", ""], ["", ""])
    values = (
        remedy.key, remedy.backend, remedy.helps, remedy.rounds_count, round(predicted.estimate), *known[0],
        f"{gain.estimate:.6f}", *known[1], remedy.bound, remedy.note, remedy.condition,
    )  # fmt: skip
    return dict(zip(_CSV_COLUMNS, values, strict=True))


def _attributed(diagnosis: Diagnosis, before: Traffic) -> tuple[Attribution, str, bool]:
    """Return where the time of all calls went before, what stands for their transport, and whether its floor is known
    from now.
    """
    alike = before.transports == diagnosis.traffic.transports  # then --recorded-over speaks of both
    source = diagnosis.source if alike else source_of(before) or USUAL_SOURCE
    floor = next((each.table for each in diagnosis.floors if each.backend == source), None)
    return attribute(before, floor)[0], source, floor is not None


def against_table(diagnosis: Diagnosis, before: Traffic, language: Language) -> Table:
    """Return where the time of a call went before and goes now."""
    (then, source, has_floor), now = _attributed(diagnosis, before), diagnosis.attributions[0]
    rows = []
    for part in (*PARTS, ""):
        old, new = ((each.parts_ns[part] if part else each.total_ns) / each.calls_count for each in (then, now))
        if old or new:
            times = f"{new / old:.2f}" if old and new else NOT_MEASURED
            spent = (format_duration_ns(value) if value else NOT_MEASURED for value in (old, new))
            rows.append((word(part or "all", language), *spent, times))
    heads = [word(key, language) for key in ("part", "before", "now", "times")]
    title = _say("against", language=language, source=printable(before.source))
    remark = word("floors apart" if has_floor else "no floor before", language)
    remarks = (remark.format(before=source, now=diagnosis.source),)
    return Table(title, make_columns(heads), tuple(rows), remarks=remarks)


def compared(diagnosis: Diagnosis, before: Traffic, language: Language) -> str:
    """Return in a sentence how long a call takes now, beside before."""
    then, now = (
        each.total_ns / each.calls_count for each in (_attributed(diagnosis, before)[0], diagnosis.attributions[0])
    )
    return _say(
        "compared",
        language=language,
        times=format_significant(now / then) if then else NOT_MEASURED,
        source=printable(before.source),
        before=format_duration_ns(then),
        now=format_duration_ns(now),
    )


FORMS: dict[str, Callable[[Diagnosis, Language, Traffic | None], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "json": as_json,
    "csv": as_csv,
}
"""Name of a format → what writes it."""
