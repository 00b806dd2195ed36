"""Student's t: the 97.5 % point, which bounds a 95 % interval, and the p-value of a test."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

NORMAL_975 = 1.959964
_STUDENT_975 = (
    (1.0, 12.7062),
    (2.0, 4.3027),
    (3.0, 3.1824),
    (4.0, 2.7764),
    (5.0, 2.5706),
    (6.0, 2.4469),
    (8.0, 2.3060),
    (10.0, 2.2281),
    (15.0, 2.1314),
    (20.0, 2.0860),
    (30.0, 2.0423),
    (60.0, 2.0003),
    (120.0, 1.9799),
    (math.inf, NORMAL_975),
)
"""Degrees of freedom → 97.5 % point of Student's t; between them it is nearly linear in 1/degrees."""
_NORMAL_DEGREES = 1e4
_NODES_COUNT = 200


def student_975(degrees: float) -> float:
    """Return the 97.5 % point of Student's t for at least one degree of freedom; within 0.3 %, fractions included."""
    points = [(1.0 / freedom, value) for freedom, value in reversed(_STUDENT_975)]
    xs, ys = zip(*points, strict=True)
    # Near one degree of freedom the points are far apart and the curve is steep, so interpolate its logarithm.
    return float(np.exp(np.interp(1.0 / max(1.0, degrees), xs, np.log(ys))))


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
