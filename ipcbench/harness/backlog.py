"""Whether a paced rate was held: by the writer, from when its messages were due, sent and written; and on the way, from
when they came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_PARTS = 10
_MIN_PAUSE_RATIO = 1.5
_MIN_STEPS = 4
"""Messages of a part; a short window has fewer parts."""
_MIN_PARTS_RATIO = 0.25
"""The delay must grow in at least this share of the parts."""
_MIN_RISING = 3
"""Of the parts of what arrives, or all if they are fewer: a few messages may queue by chance."""
_MIN_GROWTH_RATIO = 0.25
"""What counts as growth of a part, of the mean of all."""

Column = npt.NDArray[np.int64]


def held_ratio(intended: Column, sent: Column, written: Column, waited_ns: float = 0.0) -> float:
    """Return the share of the offered rate that the writer held while it was behind; 1 if it could hold all of it.

    A writer that is behind sends as fast as it can. If it can hold the rate, it catches up: a stall makes the delay
    jump once, and each message after it is less late than the one before. If it cannot, the delay grows from message to
    message. The share is below 1 only if the delay grows on the whole and in several tenths of the window, even without
    the largest step of each tenth, which may be a stall.

    Args:
        intended: when each message was due.
        sent: when its write began.
        written: how long the write took.
        waited_ns: for how long neighbours kept an endpoint from a core; the time that the writer was behind is judged
            without it.
    """
    due_ns, took_ns = np.diff(intended), np.diff(sent)
    if not len(due_ns):
        return 1.0
    at_once = (sent + written)[:-1] > intended[1:]
    behind = at_once.copy()
    behind[1:] |= at_once[:-1]  # the message with which it has caught up
    behind &= due_ns < _MIN_PAUSE_RATIO * np.median(due_ns)  # a pause between turns is not the writer's own speed
    parts = np.array_split(np.arange(len(behind)), min(_PARTS, max(1, len(behind) // _MIN_STEPS)))
    late = [steps[behind[steps]] for steps in parts if 2 * behind[steps].sum() > len(steps)]
    growth_ns = [_growth_ns(took_ns[steps] - due_ns[steps]) for steps in late]
    if sum(growth_ns) <= 0 or sum(growth > 0 for growth in growth_ns) < _MIN_PARTS_RATIO * len(parts):
        return 1.0
    steps = np.concatenate(late)
    took, due = float(took_ns[steps].sum()), float(due_ns[steps].sum())
    return 1.0 if took - waited_ns <= due else due / took


def _growth_ns(growth_ns: Column) -> int:
    """Return by how much the delay grows over these messages without the largest step, which may be a stall."""
    return int(growth_ns.sum() - growth_ns.max())


def arriving_ratio(turns: Sequence[tuple[Column, Column]], least_ns: float, waited_ns: float = 0.0) -> float:
    """Return the share of the offered rate at which messages came while a queue grew before a reader; 1 if none did.

    Messages may come several at once, of which the last one is the least late. So what is judged is how late messages
    are at least from each one on, to the end of the turn. A queue that grows makes that rise again and again; a stall,
    once, if it is not caught up.

    Args:
        turns: when the messages of each turn were due, and when they came.
        least_ns: by how much it must rise in each turn, without the largest step there, which may be a stall.
        waited_ns: for how long neighbours kept an endpoint from a core; what came later is judged without it.
    """
    steps = [np.diff(np.minimum.accumulate((came - due)[::-1])[::-1]) for due, came in turns if len(due) > 1]
    growth_ns = sum(int(each.sum()) for each in steps)
    if growth_ns - sum(int(each.max()) for each in steps) <= max(least_ns, 0.0) * len(steps):
        return 1.0
    every = np.concatenate(steps)
    parts = np.array_split(every, min(_PARTS, max(1, len(every) // _MIN_STEPS)))
    rising = sum(part.sum() > _MIN_GROWTH_RATIO * growth_ns / len(parts) for part in parts)
    due_ns = sum(float(due[-1] - due[0]) for due, _ in turns if len(due))
    if rising < max(_MIN_PARTS_RATIO * len(parts), min(_MIN_RISING, len(parts))) or growth_ns <= waited_ns:
        return 1.0
    return due_ns / (due_ns + growth_ns)
