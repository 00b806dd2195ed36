"""What the other comparisons of a run tell about how much rounds differ: an empirical Bayes prior of variances.

Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression", section 6: variances
follow a scaled inverse chi-squared distribution, whose parameters come from the mean and the variance of their
logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance

_MOST_DEGREES = 1e6


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """The distribution of the variances of a run's comparisons."""

    variance: float
    """Of the difference in one round."""
    degrees: float
    """How many degrees of freedom that is worth: 0 if the comparisons differ too much to tell about one another."""
    most_degrees: float
    """Degrees of freedom of all comparisons together; no moderated variance has more."""
    floor: float = 0.0
    """The least variance of a comparison in one table after few rounds: the median of the table's."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """The same of all comparisons that a backend takes part in: the median of its own."""

    def floor_of(self, pair: Iterable[str]) -> float:
        """Return the least variance of a comparison of these two after few rounds."""
        return max(self.floor, *(self.floors.get(name, 0.0) for name in pair))

    def moderate(self, own_variance: float, own_degrees: float, floor: float = 0.0) -> tuple[float, float]:
        """Return the variance of one comparison in the light of the others, and its degrees of freedom.

        It is never less than the comparison's own, which keeps the level where one of them has rounds of two kinds and
        the others do not. Where the variances have little to do with one another, it is not less than the floor either,
        and has the comparison's own degrees of freedom. See docs/method.md.
        """
        degrees = max(own_degrees, min(own_degrees + self.degrees, self.most_degrees))
        both = (self.degrees * self.variance + own_degrees * own_variance) / (self.degrees + own_degrees)
        if self.degrees < own_degrees:  # the comparisons tell less about one another than each about itself
            return max(own_variance, both, floor), own_degrees
        return max(own_variance, both), degrees


def variance_prior(variances: Sequence[tuple[float, float]], most_degrees: float = math.inf) -> VariancePrior | None:
    """Return the prior of variances; None for fewer than two above 0.

    Args:
        variances: each with its degrees of freedom.
        most_degrees: what they are worth together, if they are not independent.
    """
    known = [(each, degrees) for each, degrees in variances if each > 0.0 and degrees >= 1.0]
    if len(known) < 2:
        return None
    logs = [math.log(each) - _digamma(degrees / 2.0) + math.log(degrees / 2.0) for each, degrees in known]
    excess = variance(logs) - fmean(_trigamma(degrees / 2.0) for _, degrees in known)
    half = _inverse_trigamma(excess)
    most = min(most_degrees, sum(degrees for _, degrees in known))
    return VariancePrior(math.exp(fmean(logs) + _digamma(half) - math.log(half)), min(2.0 * half, most), most)


def _digamma(x: float) -> float:
    step = 1e-4 * x
    return (math.lgamma(x + step) - math.lgamma(x - step)) / (2.0 * step)


def _trigamma(x: float) -> float:
    step = 1e-2 * x
    return (math.lgamma(x + step) - 2.0 * math.lgamma(x) + math.lgamma(x - step)) / step**2


def _inverse_trigamma(value: float) -> float:
    """Return the argument at which the trigamma function, which falls, has this value; at most `_MOST_DEGREES`."""
    low, high = 1e-6, _MOST_DEGREES
    if value <= _trigamma(high):
        return high
    while high / low > 1.0 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return low
