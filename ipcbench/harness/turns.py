"""Trials of several backends measured together, in turns: a part of one's window, then a part of the next one's.

How fast a machine is changes from one tenth of a second to the next, and far more on one that is shared. What is
compared is therefore measured as close in time as can be, though never at once: each writer sends its part by a clock
that all processes share, and all endpoints sleep while others have their turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipcbench.harness.trial import Trial, TrialOutcome
from ipcbench.util.clock import now_ns

_START_NS = 20_000_000
_START_PER_ENDPOINT_NS = 500_000
"""The first turn begins so long after the first endpoint is told: all must know by then."""


def run_all(runs: Sequence[Trial]) -> list[TrialOutcome]:
    """Return the records of trials on as many groups, in their order: in turns where that is planned."""
    together = [one for one in runs if one.plan.trial.turns > 1]
    found = dict(zip(together, _run_in_turns(together), strict=True)) if together else {}
    return [found[one] if one in found else one.run() for one in runs]


def _run_in_turns(runs: Sequence[Trial]) -> list[TrialOutcome]:
    """Measure trials of one plan together; what fails in one leaves the others alone."""
    plan = runs[0].plan
    period_ns = len(runs) * plan.turn_ns()
    try:
        for one in runs:
            one.prepare()
            one.warm_up()
        endpoints_count = len(runs) * (plan.trial.readers + 1)
        start_ns = now_ns() + _START_NS + endpoints_count * _START_PER_ENDPOINT_NS
        for place, one in enumerate(runs):
            one.begin_turns(plan.turn_starts_ns(start_ns + place * plan.turn_ns(), period_ns))
        for one in runs:
            one.end_turns(plan.deadline_s() + plan.trial.turns * period_ns / 1e9)
        for one in runs:
            one.finish()
            one.complete()
    finally:
        for one in runs:
            one.release()
    return [one.outcome() for one in runs]
