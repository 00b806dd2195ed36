"""The answer of `recommend`: what was chosen and on what evidence, as data, and the chosen transport to use."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ipcbench.analysis.recommend import answer_text as recommendation_text
from ipcbench.analysis.recommend.evidence import Doubt, Expected, Sureness
from ipcbench.analysis.recommend.question import Question
from ipcbench.analysis.summary.crossover import Crossover
from ipcbench.analysis.summary.curves import Measure
from ipcbench.backend import Address, Backend, Reader, Writer
from ipcbench.errors import Unsupported
from ipcbench.registry import get_backend
from ipcbench.spec import NAME_PREFIX, ChannelSpec, WaitStrategy
from ipcbench.stats.estimates import Interval

DOCUMENT_VERSION = 1

Outcome = Literal["clear", "tie", "only candidate", "outside the measured range", "no candidate"]
"""`clear`: one is ahead. `tie`: several cannot be told apart. `only candidate`: one alone can do it and was measured.
The last two name no backend."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that can do what is asked and was measured."""

    backend: str
    rank: int
    """By the figure that decides; equal where there is no clear difference."""
    ratio: Interval
    """How many times as slow as the chosen one, by that figure; 1 for the chosen one."""
    expected: Expected
    doubts: tuple[Doubt, ...]
    trial_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A backend that was not considered, and why."""

    backend: str
    reason: str
    by: Literal["capabilities", "evidence"]
    """What it cannot do by its nature, or what this run shows or lacks."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer to one question from one run."""

    question: Question
    run_id: str
    run_path: str
    outcome: Outcome
    backend: str | None
    """The one to take; of a tie, the one to take all the same. None if there is none."""
    axis: Measure
    """The figure that decided."""
    tied_with: tuple[str, ...]
    """Others that cannot be told from it by that figure."""
    tie_break: str
    """Why it was taken among those; empty if nothing sets it apart."""
    candidates: tuple[Candidate, ...]
    """All that were ranked, the chosen one first, then by rank."""
    excluded: tuple[Exclusion, ...]
    measured_bytes: tuple[int, int] | None
    """Smallest and largest payload measured for this many readers and this delivery."""
    why_not: str
    """Why no backend is named; empty if one is."""
    crossovers: tuple[Crossover, ...]
    """Of the chosen one with every other candidate."""
    changes: tuple[str, ...]
    """What would change the choice, one sentence each."""
    sureness: Sureness
    doubts: tuple[Doubt, ...]
    """Why it is not surer, the gravest first."""
    next_command: str
    """The run that would answer, or answer better; empty if there is none to make."""
    depth: int
    """Of the channel that was measured."""
    wait: WaitStrategy

    @property
    def expected(self) -> Expected | None:
        """Return what to expect of the chosen backend."""
        return self.candidates[0].expected if self.candidates else None

    @property
    def runner_up(self) -> Candidate | None:
        """Return the next best: of a tie, the best of those tied with it."""
        return self.candidates[1] if len(self.candidates) > 1 else None

    @property
    def trial_ids(self) -> tuple[int, ...]:
        """Return the trials that the choice and the comparison with the runner-up rest on."""
        return tuple(sorted({trial for one in self.candidates[:2] for trial in one.trial_ids}))

    def sentence(self) -> str:
        """Return the verdict: what to use, its figure, the runner-up, and what stands in the way of trusting it."""
        return recommendation_text.sentence(self)

    def text(self) -> str:
        """Return the whole answer as plain text."""
        return recommendation_text.text(self)

    def markdown(self) -> str:
        """Return the whole answer as Markdown."""
        return recommendation_text.markdown(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, fit for JSON; units are in the names."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {
            "format": "ipcbench recommendation",
            "version": DOCUMENT_VERSION,
            "verdict": self.sentence(),
            **plain,
            "question": self.question.as_dict(),
            "crossovers": [one.as_dict() for one in self.crossovers],
            "trial_ids": list(self.trial_ids),
        }

    def create(self, name: str | None = None, *, max_message_bytes: int | None = None) -> Address:
        """Make a channel over the chosen transport, as it was measured: readers, delivery, depth, wait strategy.

        Args:
            name: prefix of all its resources; without it, a new one.
            max_message_bytes: largest message; without it, the question's payload.

        Raises:
            Unsupported: no backend was chosen.
            TransportError: the resources could not be had.
        """
        channel = ChannelSpec(
            name=name or f"{NAME_PREFIX}{secrets.token_hex(6)}",
            readers=self.question.readers,
            max_message_bytes=max(1, self.question.payload_bytes) if max_message_bytes is None else max_message_bytes,
            delivery=self.question.delivery,
            depth=self.depth,
            wait=self.wait,
        )
        return self._transport().create(channel)

    def open_writer(self, address: Address) -> Writer:
        """Open the one writer of a channel that `create` made, here or in any process that has the address."""
        return self._transport().open_writer(address)

    def open_reader(self, address: Address, index: int = 0) -> Reader:
        """Open reader `index` of a channel that `create` made, here or in any process that has the address."""
        return self._transport().open_reader(address, index)

    def destroy(self, address: Address) -> None:
        """Remove everything that the channel left; twice is fine."""
        self._transport().destroy(address)

    def _transport(self) -> Backend:
        if self.backend is None:
            raise Unsupported(f"no transport was chosen: {self.why_not}")
        return get_backend(self.backend)()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, str | int | float | None):
        return value
    return dict(value) if isinstance(value, Mapping) else asdict(value)
