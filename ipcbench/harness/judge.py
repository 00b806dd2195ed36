"""Whether a trial counts: it failed if anything was lost, or if the offered rate was not held."""

from __future__ import annotations

from ipcbench.errors import IntegrityError
from ipcbench.results.model import EndpointResult, Status, TrialResult
from ipcbench.spec import TrialSpec

MAX_BACKLOG_RATIO = 0.01
"""A paced trial whose writer stayed behind its schedule by more than this share of the window has failed."""


def failed_trial(
    trial: TrialSpec, trial_id: int, reason: str, started_unix_s: float, status: Status = "failed"
) -> TrialResult:
    """Return the record of a trial that yielded no figures."""
    return TrialResult(trial_id, trial, status, reason, started_unix_s, 0.0)


def judge(
    trial: TrialSpec,
    endpoints: tuple[EndpointResult, ...],
    total_count: int,
    achieved_per_s: float | None,
    backlog_ns: float,
) -> tuple[Status, str]:
    """Return the status of a trial that ran to its end, and why it failed if it did.

    Args:
        trial: what was asked for.
        endpoints: what each endpoint found.
        total_count: messages that the writer says it sent, all phases.
        achieved_per_s: the writer's real rate; None unless paced.
        backlog_ns: how far behind its schedule the writer stayed.
    """
    for one in endpoints[1:]:
        found = one.integrity
        if found.errors_count or (trial.delivery == "every_message" and found.received_count != total_count):
            error = IntegrityError(
                f"{one.role} received {found.received_count} of {total_count} messages: {found.lost_count} lost, "
                f"{found.duplicated_count} duplicated, {found.reordered_count} reordered, {found.torn_count} torn"
            )
            return "failed", str(error)
        if not one.messages_count:
            return "failed", f"{one.role} saw no message of the measured window"
    if backlog_ns > MAX_BACKLOG_RATIO * trial.window_s * 1e9:
        return "failed", (
            f"the rate was not held: {achieved_per_s or 0:.4g} of {trial.rate_per_s:.4g} messages/s; the writer ended "
            f"{backlog_ns / 1e6:.3g} ms behind its schedule"
        )
    return "ok", ""
