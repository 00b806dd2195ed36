"""The conformance suite as a class: inherit it, name a backend, and pytest runs one test per law."""

from __future__ import annotations

import os
import unittest
from typing import ClassVar

from ipcbench.backend import Backend
from ipcbench.errors import BackendUnavailable
from ipcbench.registry import get_backend
from ipcbench.testing.conformance import check_backend

EXPECT_VARIABLE = "IPCBENCH_EXPECT"
"""Environment variable: with the value `all`, tests of an unavailable backend fail instead of being skipped."""


class ConformanceSuite:
    """Checks a backend against all laws. To bind one, in a file that pytest collects:

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

    def test_c01_bytes_arrive_unchanged(self) -> None:
        self.check("C1")

    def test_c02_order_is_kept(self) -> None:
        self.check("C2")

    def test_c03_each_comes_once(self) -> None:
        self.check("C3")

    def test_c04_every_reader_gets_it(self) -> None:
        self.check("C4")

    def test_c05_nothing_is_missed_at_the_start(self) -> None:
        self.check("C5")

    def test_c06_values_are_never_torn(self) -> None:
        self.check("C6")

    def test_c07_reading_waits(self) -> None:
        self.check("C7")

    def test_c08_full_channel(self) -> None:
        self.check("C8")

    def test_c09_views_stay(self) -> None:
        self.check("C9")

    def test_c10_buffers_are_free(self) -> None:
        self.check("C10")

    def test_c11_closing_is_final(self) -> None:
        self.check("C11")

    def test_c12_streams_end(self) -> None:
        self.check("C12")

    def test_c13_killed_peers(self) -> None:
        self.check("C13")

    def test_c14_nothing_remains(self) -> None:
        self.check("C14")

    def test_c15_channels_do_not_meet(self) -> None:
        self.check("C15")

    def test_c16_too_large_is_refused(self) -> None:
        self.check("C16")

    def test_c17_any_order_opens(self) -> None:
        self.check("C17")

    def test_c18_importing_is_pure(self) -> None:
        self.check("C18")

    def test_c19_errors_are_ours(self) -> None:
        self.check("C19")
