"""Links of which a third process holds an end, too: the two that were asked for need not be those that use them."""

from __future__ import annotations

from dataclasses import replace

from ipcbench.diagnose.endpoints.link import Link, processes
from ipcbench.diagnose.endpoints.process import Holders, Key


def unless_shared(link: Link, holders: Holders, ends: set[Key]) -> Link:
    """Return the link as it is, or as `shared` with the third processes that hold one of its ends."""
    others = tuple(pid for pid in holders.of(ends) if pid not in {link.first, link.second})
    if not others:
        return link
    return replace(
        link, role="shared", others=others, evidence=(*link.evidence, f"it is held by {processes(others)}, too")
    )
