"""A question to `recommend`: payload, readers, rate, needs and goal; and the sweep that would answer it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ipcbench.analysis.recommend.needs import NEEDS
from ipcbench.errors import ConfigError
from ipcbench.spec import MAX_PAYLOAD_BYTES, Delivery, SweepSpec, WaitStrategy, require_choice, require_range
from ipcbench.util.units import format_bytes, parse_bytes, parse_rate_per_s

if TYPE_CHECKING:
    from ipcbench.results.store import Run

Goal = Literal["latency", "throughput", "cpu"]
GOALS: tuple[Goal, ...] = get_args(Goal)

_ROUNDS, _BUDGET_S = 3, 180.0
_MORE_ROUNDS, _MORE_BUDGET_S = 10, 600.0
"""If the question was measured already and the answer is not sure enough."""
_SPREAD = 4
"""The sweep also measures a payload this many times smaller and one this many times larger, to see what changes."""
_MAX_LARGER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Question:
    """One question to `recommend`.

    Raises:
        ConfigError: on construction, naming the option, its value and what is allowed.
    """

    payload_bytes: int
    """Encoded size of one message."""
    readers: int = 1
    rate_per_s: float | None = None
    """Messages per second that the transport must sustain; None if that does not matter."""
    needs: tuple[str, ...] = ()
    """Names in `NEEDS`: what a transport must offer."""
    optimise: Goal = "latency"
    """What decides among the transports that do."""

    def __post_init__(self) -> None:
        require_range("size", self.payload_bytes, 0, MAX_PAYLOAD_BYTES)
        require_range("readers", self.readers, 1, 1024)
        if self.rate_per_s is not None:
            require_range("rate", self.rate_per_s, 0.1, 10**6)
        for need in self.needs:
            require_choice("needs", need, tuple(NEEDS))
        if {"lossless", "latest-value"} <= set(self.needs):
            raise ConfigError("needs", ",".join(self.needs), "either lossless or latest-value")
        require_choice("optimise", self.optimise, GOALS)

    @property
    def delivery(self) -> Delivery:
        """Return the delivery whose figures count: every_message unless only the latest value is needed."""
        return "latest_value" if "latest-value" in self.needs else "every_message"

    def words(self) -> str:
        """Return the question as a part of a sentence: `1 MiB to 3 readers at 500/s, lossless`."""
        readers = f"{self.readers:,} reader{'s' * (self.readers != 1)}"
        rate = f" at {self.rate_per_s:,.10g} messages/s" if self.rate_per_s is not None else ""
        return ", ".join((f"{format_bytes(self.payload_bytes)} to {readers}{rate}", *self.needs))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, including the delivery that follows from the needs."""
        return {**asdict(self), "delivery": self.delivery}


def ask(
    size: int | str,
    readers: int | None,
    rate: float | str | None,
    needs: str | Iterable[str],
    optimise: Goal,
    run: Run | None = None,
    prefix: str = "",
) -> Question:
    """Return the question for values as people write them: `1MiB`, `500/s`, `lossless,no-deps`.

    Args:
        size: of one encoded payload: bytes, or a text with a unit.
        readers: number of readers; None takes that of the run, or 1 without one.
        rate: messages per second, or a text; None if it does not matter.
        needs: names in `NEEDS`.
        optimise: what decides.
        run: the evidence.
        prefix: put before the names of values in errors: `--` for options.

    Raises:
        ConfigError: naming the value that is not allowed.
    """
    size_bytes = parse_bytes(size, f"{prefix}size") if isinstance(size, str) else size
    if readers is None:
        readers = next((trial.spec.readers for trial in run.trials), 1) if run is not None else 1
    per_second = parse_rate_per_s(rate, f"{prefix}rate") if isinstance(rate, str) else rate
    try:
        return Question(size_bytes, readers, per_second, parse_needs(needs), optimise)
    except ConfigError as error:
        value = rate if error.field == "rate" else error.value  # as it was given
        raise ConfigError(f"{prefix}{error.field}", value, error.allowed) from error


def parse_needs(text: str | Iterable[str]) -> tuple[str, ...]:
    """Return the needs in `lossless,no-deps`, each once; an empty text means none."""
    parts = text.split(",") if isinstance(text, str) else text
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def question_sweep(
    question: Question, backends: Sequence[str], *, again: bool = False, wait: WaitStrategy = "auto"
) -> SweepSpec:
    """Return a small sweep for exactly this question: its payload as raw bytes, and a smaller and a larger one.

    Args:
        question: what is asked.
        backends: which backends to measure.
        again: take more rounds, because it was measured already.
        wait: how endpoints wait.

    Raises:
        ConfigError: there are no backends to measure.
    """
    size = question.payload_bytes
    larger = size * _SPREAD
    sizes = {max(1, size // _SPREAD), size} | ({larger} if 0 < larger <= _MAX_LARGER_BYTES else set())
    return SweepSpec(
        name="recommend",
        backends=tuple(backends),
        readers=question.readers,
        payload="bytes",
        sizes=tuple(sorted(sizes)),
        codec="raw",
        delivery=question.delivery,
        modes=("paced", "saturate"),
        rate_per_s=question.rate_per_s,
        wait=wait,
        rounds=_MORE_ROUNDS if again else _ROUNDS,
        look=False,
        budget_s=_MORE_BUDGET_S if again else _BUDGET_S,
    )


def sweep_command(
    question: Question, backends: Sequence[str], *, again: bool = False, wait: WaitStrategy = "auto"
) -> str:
    """Return the command line that measures `question_sweep`."""
    sweep = question_sweep(question, backends, again=again, wait=wait)
    options = {
        "backends": ",".join(sweep.backends),
        "payload": sweep.payload,
        "codec": sweep.codec,
        "sizes": ",".join(map(str, sweep.sizes)),
        "readers": str(sweep.readers),
        "delivery": sweep.delivery,
        "mode": ",".join(sweep.modes),
        "rate": "auto" if sweep.rate_per_s is None else f"{sweep.rate_per_s:.10g}/s",
        "rounds": str(sweep.rounds),
        "look": "no",
        "budget": f"{sweep.budget_s:g}s",
        **({"wait": wait} if wait != "auto" else {}),
    }
    return " ".join(("ipcbench run", *(f"--{name} {value}" for name, value in options.items())))
