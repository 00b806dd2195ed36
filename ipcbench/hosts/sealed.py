"""What a link runs over: the descriptors that a launcher carries, bare or, where that launcher does not encrypt, under
TLS between the two ends.

Both ends make a key and a certificate that live as long as they do. The agent's comes in its first line; the
coordinator's is known by its fingerprint, in the agent's command line. So no secret is passed anywhere. Only who can
change what the launcher carries could take the place of an end, and whoever can do that can start programs anyway.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import select
import ssl
import tempfile
import threading
from typing import NamedTuple

from ipcbench.errors import ConfigError, TrialError
from ipcbench.util.clock import remaining_s
from ipcbench.util.files import temporary_folder

_CHUNK_BYTES = 2**18
_TLS_BYTES = 2**14
_MARK, _MOST_BEFORE_BYTES = b"ipcbench-agent ", 2**16
_HINT = "with that package on each host: pip install 'ipcbench[hosts]'"


class LinkLost(TrialError):
    """The other side of a link is gone, or silent."""


class Identity(NamedTuple):
    """A key and its certificate, made for one link."""

    pem: bytes
    """Both, for `ssl`."""
    certificate: bytes
    """In DER."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate."""
        return hashlib.sha256(self.certificate).hexdigest()


def new_identity() -> Identity:
    """Return a new one.

    Raises:
        ConfigError: the package that makes it is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise ConfigError("--launch", "a launcher that does not encrypt", f"one {_HINT}") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ipcbench")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(
        private + made.public_bytes(serialization.Encoding.PEM), made.public_bytes(serialization.Encoding.DER)
    )


class Bare:
    """Two descriptors, which become its own; neither call waits.

    Attributes:
        incoming: to read from.
        outgoing: to write to.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self._early = b""
        """What came together with the mark."""
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)

    def begin_as_agent(self) -> None:
        """Say that from here on the agent speaks; a pipe has room for that."""
        os.write(self.outgoing, _MARK + b"\n")

    def begin_as_coordinator(self, deadline: int | None) -> None:
        """Wait for the agent, behind what its host may say before.

        Raises:
            LinkLost: it is gone, or is none, or does not answer in time.
        """
        _, self._early = self._behind_mark(deadline)

    def _behind_mark(self, deadline: int | None) -> tuple[bytes, bytes]:
        """Return the rest of the agent's first line, and what has come after it."""
        said = b""
        while b"\n" not in said.partition(_MARK)[2]:
            if len(said) > _MOST_BEFORE_BYTES:
                raise LinkLost("the agent does not begin")
            said += self._more(deadline)
        first, _, rest = said.partition(_MARK)[2].partition(b"\n")
        return first, rest

    def _more(self, deadline: int | None) -> bytes:
        """Wait for bytes."""
        if not is_ready(self.incoming, select.POLLIN, deadline):
            raise LinkLost("the other side does not answer")
        try:
            if data := os.read(self.incoming, _CHUNK_BYTES):
                return data
        except OSError as error:
            raise LinkLost("the other side is gone") from error
        raise LinkLost("the other side is gone")

    def read(self) -> bytes:
        """Return what there is; nothing at the end.

        Raises:
            BlockingIOError: there is nothing yet. Or another OSError.
        """
        early, self._early = self._early, b""
        return early or os.read(self.incoming, _CHUNK_BYTES)

    def write(self, data: memoryview) -> int:
        """Take some bytes and return how many; raises as `read` does."""
        return os.write(self.outgoing, data)

    def flush(self) -> None:
        """Send what was taken; raises as `read` does."""

    def close(self) -> None:
        """Close both."""
        for descriptor in {self.incoming, self.outgoing}:
            os.close(descriptor)


class Sealed(Bare):
    """The same under TLS. `seal_as_agent` or `seal_as_coordinator` begins it."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        super().__init__(incoming, outgoing)
        self._received, self._made = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent = b""
        self._guard = threading.Lock()  # OpenSSL lets one thread in at a time

    def seal_as_agent(self, identity: Identity, fingerprint: str, deadline: int | None) -> None:
        """Say who this is, and agree on keys with the coordinator of that fingerprint.

        Raises:
            LinkLost: it is somebody else, or does not answer in time.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the fingerprint decides
        self._unsent = _MARK + base64.b64encode(identity.certificate) + b"\n"
        self._agree(context, identity, deadline, is_coordinator=False)
        if hashlib.sha256(self._tls.getpeercert(binary_form=True) or b"").hexdigest() != fingerprint:
            raise LinkLost("this is not the coordinator that started this agent")

    def seal_as_coordinator(self, identity: Identity, deadline: int | None) -> None:
        """Wait for the agent's certificate, behind what its host may say before, and agree on keys with it.

        Raises:
            LinkLost: it is gone, or is none, or does not answer in time.
        """
        first, rest = self._behind_mark(deadline)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=base64.b64decode(first))
        except (ValueError, ssl.SSLError) as error:
            raise LinkLost(f"the agent's certificate is none: {error}") from error
        self._received.write(rest)
        self._agree(context, identity, deadline, is_coordinator=True)

    def _agree(
        self, context: ssl.SSLContext, identity: Identity, deadline: int | None, *, is_coordinator: bool
    ) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.NamedTemporaryFile(dir=temporary_folder()) as file:  # which `ssl` takes keys from only
            file.write(identity.pem)
            file.flush()
            context.load_cert_chain(file.name)
        self._tls = context.wrap_bio(self._received, self._made, server_side=is_coordinator)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send(deadline)
                self._received.write(self._more(deadline))
            except ssl.SSLError as error:
                raise LinkLost(f"no agreement on keys: {error.reason}") from error
        self._send(deadline)

    def _send(self, deadline: int | None) -> None:
        while True:
            try:
                return self.flush()
            except BlockingIOError:
                if not is_ready(self.outgoing, select.POLLOUT, deadline):
                    raise LinkLost("the other side does not answer") from None
            except OSError as error:
                raise LinkLost("the other side is gone") from error

    def read(self) -> bytes:
        with self._guard:
            while True:
                try:
                    return self._tls.read(_CHUNK_BYTES)
                except ssl.SSLWantReadError:
                    if data := super().read():
                        self._received.write(data)
                    else:
                        self._received.write_eof()
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""

    def write(self, data: memoryview) -> int:
        with self._guard:
            self._flush()
            return self._tls.write(data[:_TLS_BYTES])

    def flush(self) -> None:
        with self._guard:
            self._flush()

    def _flush(self) -> None:
        self._unsent += self._made.read()
        while self._unsent:
            self._unsent = self._unsent[super().write(memoryview(self._unsent)) :]


def is_ready(descriptor: int, event: int, deadline: int | None) -> bool:
    """Return whether a descriptor can be read from or written to, which is awaited until a deadline."""
    poll = select.poll()
    poll.register(descriptor, event)
    left_s = remaining_s(deadline)
    return bool(poll.poll(None if left_s is None else 1e3 * left_s))
