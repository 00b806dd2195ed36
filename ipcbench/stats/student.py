"""Student's t: the critical value, which bounds an interval, and the p-value of a test."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

_NORMAL_DEGREES = 1e4
_NODES_COUNT = 200


def student_975(degrees: float) -> float:
    """Return the 97.5 % point of Student's t for at least one degree of freedom, fractions included."""
    return student_critical(0.95, degrees)


@cache
def student_critical(level: float, degrees: float) -> float:
    """Return t so that a two-sided interval of ± t standard errors has this level, for at least one degree of freedom.

    Newton's method on the p-value: it is convex, so that steps from the normal point approach the root from below.
    """
    degrees = max(1.0, degrees)
    t = NormalDist().inv_cdf((1.0 + level) / 2.0)
    if degrees >= _NORMAL_DEGREES:
        return t
    log_height = math.lgamma((degrees + 1.0) / 2.0) - math.lgamma(degrees / 2.0) - math.log(degrees * math.pi) / 2.0
    while (gap := student_p_value(t, degrees) - (1.0 - level)) > 1e-9:
        t += gap / (2.0 * math.exp(log_height - (degrees + 1.0) / 2.0 * math.log1p(t * t / degrees)))
    return t


@cache
def _quadrature() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the nodes and weights of Gauss–Legendre quadrature on −1 to 1."""
    return np.polynomial.legendre.leggauss(_NODES_COUNT)


def student_p_value(t: float, degrees: float) -> float:
    """Return the two-sided p-value of Student's t for at least one degree of freedom, fractions included."""
    if degrees >= _NORMAL_DEGREES:
        return math.erfc(abs(t) / math.sqrt(2.0))
    # With t = √ν · cot φ the density is that of sin^(ν − 1) φ, and the tail beyond t is φ from 0 to acot(t/√ν).
    end = math.atan2(math.sqrt(degrees), abs(t))
    nodes, weights = _quadrature()
    tail = float(weights @ np.sin((nodes + 1.0) * (end / 2.0)) ** (degrees - 1.0)) * end / 2.0
    log_half = math.lgamma(degrees / 2.0) - math.lgamma((degrees + 1.0) / 2.0) + math.log(math.pi) / 2.0
    return min(1.0, 2.0 * tail / math.exp(log_half))
