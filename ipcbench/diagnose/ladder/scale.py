"""How much of a forward pass is carried out: fewer layers, or a shorter sequence, so that all rounds fit the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ipcbench.diagnose.ladder.stages import Stage, traffic_of
from ipcbench.models import Model
from ipcbench.stats.estimates import MIN_CLAIM_ROUNDS

WARM_S = 1.0
"""A warm-up ends with the call in which this is reached."""

_WORTH_RATIO = 0.9

TURN_S = 0.3
"""A stage repeats its pass for about so long in each round."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is carried out in one turn of a stage.

    Attributes:
        tokens_count: of the sequence.
        layers_count: layers that are carried out; the time in them is multiplied to that of all.
        rounds_count: rounds that probably fit the budget.
    """

    tokens_count: int
    layers_count: int
    rounds_count: int


@dataclass(frozen=True, slots=True)
class Pilot:
    """What a first try of a stage tells of the cost of all that use its transport.

    Attributes:
        start_s: to start and end its processes.
        per_byte_s: to move a byte of a tensor.
    """

    start_s: float
    per_byte_s: float


def choose_scale(
    model: Model, tokens: int, rounds: int, budget_s: float, stages: Sequence[Stage], pilots: Mapping[str, Pilot]
) -> Scale:
    """Return the largest scale that probably fits the budget: with as many layers as fit all rounds, or else three. If
    one layer does not, the sequence is shortened while that makes rounds shorter.

    Args:
        model: whose layers they are.
        tokens: of the sequence that was asked for.
        rounds: that were asked for.
        budget_s: that is left.
        stages: that take turns.
        pilots: by backend; one for each stage's.
    """
    fewest = min(rounds, MIN_CLAIM_ROUNDS)
    count = tokens
    while True:
        for rounds_count in dict.fromkeys((rounds, fewest)):
            for layers_count in range(model.num_hidden_layers, 0, -1):
                if rounds_count * round_s(model, count, layers_count, stages, pilots) <= budget_s:
                    return Scale(count, layers_count, rounds_count)
        if count == 1 or not _is_worth_it(*(round_s(model, one, 1, stages, pilots) for one in (count, count // 2))):
            return Scale(count, 1, fewest)
        count //= 2


def _is_worth_it(long_s: float, short_s: float) -> bool:
    """Return whether half the tokens make a round so much shorter: most of its time may be that of its processes."""
    return short_s < _WORTH_RATIO * long_s


def round_s(
    model: Model, tokens: int, layers_count: int, stages: Sequence[Stage], pilots: Mapping[str, Pilot]
) -> float:
    """Return how long a round will probably take, s."""
    total_s = 0.0
    for stage in stages:
        pilot, traffic = pilots[stage.backend], traffic_of(model, tokens, stage)
        warm_s, pass_s = (
            stage.streams_count * pilot.per_byte_s * traffic.moved_bytes(count) for count in (1, layers_count)
        )
        total_s += pilot.start_s + min(WARM_S, warm_s) + max(TURN_S, pass_s)
    return total_s
