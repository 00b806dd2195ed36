"""What is said of hosts, without their names and addresses: a run's files may be published."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address

_OUR_WORDS = frozenset(("host", "localhost", "reader", "server", "worker", "writer"))
_LEAST_CHARACTERS = 3
"""Of a name that is replaced wherever it stands alone."""
_BEFORE, _AFTER = r"(?<![\w-])(?<![^/]/)", r"(?![\w-])"
_DOMAIN = r"(?:\.[A-Za-z][\w-]*)*"


class Unnamed:
    """Puts the number of each host in place of its names and addresses.

    Args:
        hosts: of each, its names and addresses.
    """

    def __init__(self, hosts: Sequence[Iterable[str]]) -> None:
        self._labels: dict[str, str] = {}
        for number, known in enumerate(hosts, 1):
            for name in {part for each in known for part in _parts(each)}:
                self._labels[name] = "a host" if name in self._labels else f"host {number}"
        longest_first = sorted(self._labels, key=len, reverse=True)
        patterns = "|".join(f"(?P<_{number}>{_pattern(name)})" for number, name in enumerate(longest_first))
        self._pattern, self._names = re.compile(patterns or "(?!)"), longest_first

    def __call__(self, text: str) -> str:
        """Return a text as it may be published."""
        return self._pattern.sub(self._label, text)

    def _label(self, match: re.Match[str]) -> str:
        return self._labels[self._names[int((match.lastgroup or "_0")[1:])]]


def _parts(name: str) -> set[str]:
    """Return the names in that of an inventory: a user's and a domain's are left out, too."""
    if _is_address(name):
        return {name}
    host = name.rpartition("@")[2]
    short = host if _is_address(host) else host.partition(".")[0]
    return {name, host, short} - {""}


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _pattern(name: str) -> str:
    """Return what matches a name or an address only as a whole.

    Where a short one stands alone, it may be another word; so it counts only where it must be a host's.
    """
    quoted = re.escape(name)
    if _is_address(name):
        if ":" in name:  # behind which a port may stand, without brackets
            return rf"(?<![\w:.]){quoted}(?!\w|:\w*:|\.\d)"
        return rf"(?<![\w.]){quoted}(?!\w|\.\d)"
    if len(name) >= _LEAST_CHARACTERS and name not in _OUR_WORDS and not name.isdigit():
        return rf"(?:\bhost )?{_BEFORE}{quoted}{_DOMAIN}{_AFTER}"
    said = "" if name.isdigit() else rf"|\bhost {quoted}{_DOMAIN}{_AFTER}"
    return rf"""(?<=@){quoted}(?=\])|(?<="){quoted}(?=")|(?<='){quoted}(?=')|{_BEFORE}{quoted}(?=:\d){said}"""
