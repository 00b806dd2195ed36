"""What the command lines of these scripts share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from ipcbench.errors import IpcbenchError


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of argparse: a whole number from `least` on."""

    def count(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too few; it takes {least}")
        return number

    return count


def counts(text: str) -> list[int]:
    """Return the numbers of a list such as `3,5,10`, each from 1 on: a type of argparse."""
    return [at_least(1)(word) for word in text.split(",")]


def carry_out(main: Callable[[], int | None]) -> NoReturn:
    """Run a script and exit; an error of ipcbench is one line."""
    try:
        sys.exit(main())
    except IpcbenchError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
