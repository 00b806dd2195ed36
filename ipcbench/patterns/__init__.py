"""Queues and fan-in, made of channels with one writer and one reader each, over any transport with descriptors.

- `parts`: the channels of a pattern: what they are called, how they are made and found
- `queue`: one writer, many workers; each message goes to one of them
- `fan_in`: many writers, one reader
"""

from __future__ import annotations

from ipcbench.patterns.opened import with_patterns

__all__ = ["with_patterns"]
