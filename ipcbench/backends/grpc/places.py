"""Where the writer of a channel listens, and how a reader finds it: by a file with the target and a secret.

Both sides prove to each other that they know the secret: any user can connect to a port, or take it after the writer.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ipcbench.sync.directory import write_private

_SECRET_BYTES = 16
_ANY_PORT = ":0"


class Place(NamedTuple):
    """Where a writer listens, in gRPC's words, and the secret of its channel."""

    target: str
    secret: str

    def proof(self, of: str) -> str:
        """Return what tells that one knows the secret, for one purpose."""
        return hmac.new(self.secret.encode(), of.encode(), "sha256").hexdigest()


def listen(server: Any, targets: Iterable[str], path: Path) -> Place:
    """Have a server listen at the first of the targets where it can, and make that known at `path`.

    Raises:
        OSError: it cannot listen at any, or the file cannot be written.
    """
    for target in targets:
        try:
            port = server.add_insecure_port(target)
        except RuntimeError as error:
            failure = OSError(str(error).partition("\n")[0])
            continue
        bound = f"{target.removesuffix(_ANY_PORT)}:{port}" if target.endswith(_ANY_PORT) else target
        place = Place(bound, secrets.token_hex(_SECRET_BYTES))
        write_private(path, "\n".join(place))
        return place
    raise failure


def find(path: Path) -> Place | None:
    """Return the place of a writer; None if it does not listen yet.

    Raises:
        OSError: what is there is damaged.
    """
    try:
        return Place(*path.read_text().split("\n"))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise OSError(f"{path} is damaged; destroy the channel and make another") from error
