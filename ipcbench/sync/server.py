"""The server of a transport: one that is there already, which a variable names, or a service of the channel's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ipcbench.errors import BackendUnavailable, TransportError
from ipcbench.sync.directory import write_private
from ipcbench.sync.service import SERVICE_SUFFIX

_URL_FILE = "url"
"""In a channel's folder: where its server is. Others may see an address; the URL may have a password."""
_SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin"
"""Where some systems have servers, and where the search path of users does not lead."""


@dataclass(frozen=True, slots=True)
class Server:
    """The servers of one kind."""

    service: str
    """Name of the service, where the channel has its own."""
    programs: tuple[str, ...]
    """What starts one; the last is the name of its package, too."""
    variable: str
    """Names one that is there already; nothing is started or ended then."""

    @property
    def named_url(self) -> str:
        """Where the one is that the variable names; empty if it names none."""
        return os.environ.get(self.variable, "")

    @property
    def program(self) -> str:
        """The path of the program; its name if there is none."""
        found = (shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS) for name in self.programs)
        return next(filter(None, found), self.programs[-1])

    def probe(self, backend: str, ask: Callable[[str], object], errors: tuple[type[Exception], ...] = ()) -> None:
        """Require the server that the variable names, or else a program that starts one.

        Raises:
            BackendUnavailable: there is none.
        """
        if not self.is_named(backend, ask, errors) and self.program == self.programs[-1]:
            package = self.program
            raise BackendUnavailable(backend, f"there is no {package}", f"apt-get install {package}")

    def is_named(self, backend: str, ask: Callable[[str], object], errors: tuple[type[Exception], ...] = ()) -> bool:
        """Require the server that the variable names; return whether it names one.

        Args:
            backend: whose server it is.
            ask: raises OSError, ValueError, TransportError or one of `errors` if there is no server at a URL.
            errors: of the library.

        Raises:
            BackendUnavailable: it names one that does not serve.
        """
        failures: tuple[type[Exception], ...] = OSError, ValueError, TransportError, *errors
        try:
            if url := self.named_url:
                ask(url)
        except failures as error:
            hint = f"mend or unset {self.variable}, or start that server"
            raise BackendUnavailable(backend, f"{self.variable} names none that serves: {error}", hint) from error
        return bool(self.named_url)

    def is_own(self, folder: Path) -> bool:
        """Return whether the channel with that folder has a service."""
        return (folder / f"{self.service}{SERVICE_SUFFIX}").exists()


def keep_url(folder: Path, url: str) -> None:
    """Say in a channel's folder where its server is.

    Raises:
        OSError: that cannot be written.
    """
    write_private(folder / _URL_FILE, url)


def url_of(folder: Path) -> str:
    """Return where the server of a channel with that folder is.

    Raises:
        OSError: the channel has none.
    """
    return (folder / _URL_FILE).read_text()
