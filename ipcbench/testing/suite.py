"""The conformance suite as a class: inherit it, name a backend, and pytest runs one test per law."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import ClassVar

from ipcbench.backend import Backend
from ipcbench.errors import BackendUnavailable
from ipcbench.registry import get_backend
from ipcbench.testing.conformance import LAWS, Law, check_backend

EXPECT_VARIABLE = "IPCBENCH_EXPECT"
"""Environment variable: with the value `all`, tests of an unavailable backend fail instead of being skipped."""


class ConformanceSuite:
    """Checks a backend, with a test per law: `test_c01_bytes_arrive_unchanged` and so on.

    To bind a backend, in a file that pytest collects:

    class TestMine(ConformanceSuite):
        backend = "mine"
    """

    backend: ClassVar[str | type[Backend]]
    """A registered name, `module:Class`, or a class."""
    readers: ClassVar[tuple[int, ...]] = (1, 3)
    """Reader counts to check with."""
    quick: ClassVar[bool] = False
    """Fewer and smaller messages in less time."""

    def check(self, law: str) -> None:
        """Check one law; raise AssertionError if it is broken and SkipTest if it does not apply."""
        try:
            backend = get_backend(self.backend) if isinstance(self.backend, str) else self.backend
            (result,) = check_backend(backend, laws=[law], readers=self.readers, quick=self.quick)
        except BackendUnavailable as error:
            if os.environ.get(EXPECT_VARIABLE) == "all":
                raise AssertionError(f"{EXPECT_VARIABLE}=all, but {error}") from error
            raise unittest.SkipTest(str(error)) from error
        if result.outcome == "failed":
            raise AssertionError(f"{law}, {result.title}: {result.reason}")
        if result.outcome == "skipped":
            raise unittest.SkipTest(f"{law}: {result.reason}")


def _test_of(law: Law) -> Callable[[ConformanceSuite], None]:
    def test(self: ConformanceSuite) -> None:
        self.check(law.number)

    test.__name__ = f"test_c{int(law.number[1:]):02}_{law.check.__name__}"
    test.__doc__ = f"{law.number}: {law.title}."
    return test


for _test in map(_test_of, LAWS.values()):  # pytest and unittest collect the methods of a class by their names
    setattr(ConformanceSuite, _test.__name__, _test)
