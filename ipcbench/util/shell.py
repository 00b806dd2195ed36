"""Command lines to copy into a shell."""

from __future__ import annotations

import shlex


def shell_command(*words: object) -> str:
    """Return the words as one command line; a path with a space, say, is quoted."""
    return shlex.join(map(str, words))
