"""Colours and marks of backends, the same in files and in the report: told apart by colour-blind eyes and in grey."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's set, the yellow left out (too pale on white) and the pale ones darkened for white paper; each has a
# lighter twin for a dark ground. A second turn through the colours meets other markers and dashes, never the same mark.
_LIGHT = ("#0072b2", "#d55e00", "#008f68", "#b8568f", "#b07c00", "#2a9bd6", "#5b4bb5", "#7a7a7a", "#8c2d04", "#3f7f1f")
_DARK = ("#4fb3f0", "#ff8a4c", "#2ecc9f", "#e79bc6", "#e6b13a", "#8fd3ff", "#a99bff", "#b5b5b5", "#d98b63", "#8fce6a")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star")
_DASHES = ("solid", "dash", "dot")

REFERENCE_LIGHT, REFERENCE_DARK = "#6b7280", "#9aa4b2"


@dataclass(frozen=True, slots=True)
class Mark:
    """How a backend is drawn."""

    light: str
    """Colour on a light ground, #rrggbb."""
    dark: str
    """Colour on a dark ground."""
    marker: str
    """One of circle, square, diamond, triangle-up, triangle-down, pentagon, star."""
    dash: str
    """One of solid, dash, dot."""


def mark(number: int) -> Mark:
    """Return the mark of the backend with this number; a negative one is for what is no backend."""
    if number < 0:
        return Mark(REFERENCE_LIGHT, REFERENCE_DARK, "circle", "dash")
    return Mark(
        _LIGHT[number % len(_LIGHT)],
        _DARK[number % len(_DARK)],
        _MARKERS[number % len(_MARKERS)],
        _DASHES[number // len(_LIGHT) % len(_DASHES)],
    )
