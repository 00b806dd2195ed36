"""Colours, markers and dashes of series, the same in files and pages; distinct to colour-blind readers and in grey."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's set without yellow (too pale on white), the pale colours darkened; each has a lighter variant for dark
# backgrounds. When the colours repeat, markers and dashes differ, so no two of the first styles are equal.
_LIGHT = ("#0072b2", "#d55e00", "#008f68", "#b8568f", "#b07c00", "#2a9bd6", "#5b4bb5", "#7a7a7a", "#8c2d04", "#3f7f1f")
_DARK = ("#4fb3f0", "#ff8a4c", "#2ecc9f", "#e79bc6", "#e6b13a", "#8fd3ff", "#a99bff", "#b5b5b5", "#d98b63", "#8fce6a")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star")
_DASHES = ("solid", "dash", "dot")

PARTS_START = 1000
"""The first number of what is no backend and no method, such as the stages of a call: it has colours of its own."""

_PARTS_LIGHT = ("#264653", "#e9c46a", "#94a89a", "#e07a3f", "#8a3b3b", "#6d597a", "#76c5b0", "#c98a9b", "#b8b08d")
_PARTS_DARK = ("#5f8fa3", "#f0d589", "#b5c7ba", "#f0a06f", "#c27070", "#a58fb5", "#98ddca", "#e3b0bd", "#d6cfae")
REFERENCE_LIGHT, REFERENCE_DARK = "#6b7280", "#9aa4b2"


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """How a series is drawn."""

    light: str
    """Colour on a light background, #rrggbb."""
    dark: str
    """Colour on a dark background."""
    marker: str
    """One of circle, square, diamond, triangle-up, triangle-down, pentagon, star."""
    dash: str
    """One of solid, dash, dot."""


def series_style(number: int) -> SeriesStyle:
    """Return the style of backend `number`; a negative number means that the series is not a backend, one from
    `PARTS_START` that it is a part of something.
    """
    if number < 0:
        return SeriesStyle(REFERENCE_LIGHT, REFERENCE_DARK, "circle", "dash")
    if number >= PARTS_START:
        place = (number - PARTS_START) % len(_PARTS_LIGHT)
        return SeriesStyle(_PARTS_LIGHT[place], _PARTS_DARK[place], "square", "solid")
    return SeriesStyle(
        _LIGHT[number % len(_LIGHT)],
        _DARK[number % len(_DARK)],
        _MARKERS[number % len(_MARKERS)],
        _DASHES[number // len(_LIGHT) % len(_DASHES)],
    )
