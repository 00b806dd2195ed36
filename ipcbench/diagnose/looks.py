"""What a look at processes, at an endpoint, or a user's own requests came to: the fields of their JSON, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ipcbench.diagnose.endpoints import Agreement, Health, Links
from ipcbench.diagnose.stepwise import Framing, Step
from ipcbench.util.units import format_bytes, format_duration_ns


def links_fields(found: Links, word: str | None, fits: Agreement | None) -> dict[str, Any]:
    """Return what joins processes, and whether a log's word for it fits."""
    return {
        "first_pid": found.first,
        "second_pid": found.second,
        "state": found.state,
        "verdict": found.verdict,
        "log_says": word,
        "log_answer": None if fits is None else fits.answer,
        "notes": list(found.notes),
        "commands": {str(pid): command for pid, command in found.commands.items()},
        "links": [
            {
                "kind": link.kind,
                "address": link.address,
                "pids": [link.first, link.second],
                "role": link.role,
                "may_carry_data": link in found.carriers,
                "library": link.library,
                "sent_bytes": link.sent_bytes,
                "received_bytes": link.received_bytes,
                "round_trip_us": link.rtt_us,
                "evidence": list(link.evidence),
            }
            for link in found.links
        ],
    }


def health_fields(found: Health) -> dict[str, Any]:
    """Return how an endpoint is."""
    return {
        "endpoint": found.endpoint.url,
        "kind": found.endpoint.kind,
        "is_healthy": found.is_healthy,
        "listeners": [{"pid": pid, "command": command} for pid, command in found.listeners],
        "findings": [asdict(finding) for finding in found.findings],
    }


def requests_fields(
    endpoint: str, framing: Framing, timeout_s: float, requests_count: int, steps: Sequence[Step]
) -> dict[str, Any]:
    """Return what became of a user's requests, of which those after the first that failed were not sent."""
    return {
        "endpoint": endpoint,
        "framing": framing,
        "timeout_s": timeout_s,
        "requests_count": requests_count,
        "steps": [asdict(step) for step in steps],
    }


def step_text(step: Step) -> str:
    """Return a line about a request."""
    if step.error is not None or step.time_ns is None:
        return f"{step.name}: failed: {step.error}"
    sent, received = (format_bytes(size or 0) for size in (step.sent_bytes, step.received_bytes))
    return f"{step.name}: {format_duration_ns(step.time_ns)}, sent {sent}, received {received}"
