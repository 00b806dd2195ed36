"""The conformance suite, for this package's backends and for anybody else's: bind it, and it says which law is broken.

What does not live here: the laws in prose (docs/contract.md).

    check_backend      check a class, get a list of LawResult
    ConformanceSuite   a class of tests to inherit, one test a law
    faulty             a backend that breaks just one law, to see the suite turn red
"""

from ipcbench.testing.conformance import LAWS, Law, LawResult, check_backend
from ipcbench.testing.faults import faulty
from ipcbench.testing.suite import ConformanceSuite

__all__ = ["LAWS", "ConformanceSuite", "Law", "LawResult", "check_backend", "faulty"]
