"""Text of others, made fit to be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text as one line without terminal control characters."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)
