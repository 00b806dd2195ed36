"""What a run answers, in the same words on the screen, above the tables and at the head of the page."""

from __future__ import annotations

from collections.abc import Sequence

from ipcbench.analysis.report.tables import Tables
from ipcbench.analysis.summary.base import base_words
from ipcbench.analysis.summary.cells import SettingSummary
from ipcbench.analysis.summary.curves import families, middle_of
from ipcbench.analysis.summary.wording import family_words
from ipcbench.render.page import Headline


def headlines(tables: Tables) -> tuple[Headline, ...]:
    """Return one headline for each family of settings that differ only in size, and for each table of a queue or
    fan-in the answer for the most peers.
    """
    patterns = (Headline(table.remarks[-1], table.remarks[:-1]) for table in tables.pattern_tables if table.remarks)
    return (*(family_headline(tables, family) for family in families(tables.summary)), *patterns)


def family_headline(tables: Tables, family: Sequence[SettingSummary]) -> Headline:
    """Return the answer at the middle size, where the first rank changes with the size, and what others gain over the
    run's base, if it has one.

    Args:
        tables: of the run.
        family: settings of the run that differ only in size, by size.
    """
    middle = middle_of(family)
    answer = tables.answers[tables.summary.settings.index(middle)]
    words = family_words(middle.setting)
    matrix = next((each for each in tables.matrices if words in each.title), None)
    changes = "" if matrix is None else " ".join(matrix.remarks[:-1])
    return Headline(answer.sentence, (*([changes] if changes else []), *base_words(tables.summary, middle)))
