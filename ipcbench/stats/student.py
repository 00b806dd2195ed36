"""Student's t and Tukey's studentized range: the 95 % points, which bound intervals, and the p-value of a test."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
"""Confidence level of every interval."""

_NORMAL_DEGREES = 1e4
_NODES_COUNT = 200
_STEP = 1.0 / 64.0
_FARTHEST, _WIDEST = 9.0, 15.0
"""Beyond these, normal deviates and the ranges of some are too rare to count."""


@cache
def student_975(degrees: float) -> float:
    """Return the 97.5 % point of Student's t for at least one degree of freedom, fractions included.

    Newton's method on the p-value: it is convex, so that steps from the normal point approach the root from below.
    """
    degrees = max(1.0, degrees)
    t = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)
    if degrees >= _NORMAL_DEGREES:
        return t
    log_height = math.lgamma((degrees + 1.0) / 2.0) - math.lgamma(degrees / 2.0) - math.log(degrees * math.pi) / 2.0
    while (gap := student_p_value(t, degrees) - (1.0 - LEVEL)) > 1e-9:
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


@cache
def range_critical(among: int, degrees: float) -> float:
    """Return t so that no two of so many equal means differ by t standard errors of their difference, at 95 %.

    It is Tukey's studentized range / √2, and of two means the 97.5 % point of Student's t.
    """
    least = student_975(degrees)
    if among <= 2:
        return least
    low, high = least, least * math.sqrt(among)
    while high - low > 1e-6 * low:
        middle = (low + high) / 2.0
        low, high = (middle, high) if _range_probability(middle, among, degrees) < LEVEL else (low, middle)
    return high


def _range_probability(t: float, among: int, degrees: float) -> float:
    """Return the probability that no two means differ by more than t standard errors, if all are equal."""
    widths, probabilities = _normal_range(among)
    if degrees >= _NORMAL_DEGREES:
        return float(np.interp(math.sqrt(2.0) * t, widths, probabilities))
    # Over the logarithm of an estimated standard deviation of 1, whose density falls like exp(ν u) below.
    lowest = min(15.0, max(30.0 / degrees, 9.0 / math.sqrt(2.0 * degrees)))
    logs = np.linspace(-lowest, 9.0 / math.sqrt(2.0 * degrees), 1000)
    density = np.exp(degrees * (logs - np.expm1(2.0 * logs) / 2.0))
    return float(density @ np.interp(math.sqrt(2.0) * t * np.exp(logs), widths, probabilities) / density.sum())


@cache
def _normal_range(count: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return widths, and the probability that so many normal deviates lie within each: the lowest, then the others."""
    places = np.arange(-_FARTHEST, _FARTHEST + _WIDEST, _STEP)
    below = np.array([math.erfc(-place / math.sqrt(2.0)) / 2.0 for place in places])
    starts = round(2.0 * _FARTHEST / _STEP)
    density = np.exp(-(places[:starts] ** 2) / 2.0) * _STEP / math.sqrt(2.0 * math.pi)
    widths = np.arange(0.0, _WIDEST, _STEP)
    within = [below[shift : shift + starts] - below[:starts] for shift in range(len(widths))]
    return widths, np.array([count * float(density @ each ** (count - 1)) for each in within])
