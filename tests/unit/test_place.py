"""Files that say where an endpoint listens."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ipcbench.sync.place import find, publish


def test_what_is_published_is_found_and_private(tmp_path: Path) -> None:
    path = tmp_path / "place"
    with pytest.raises(FileNotFoundError):
        find(path)
    place = publish(path, "127.0.0.1 4000")
    assert find(path) == place
    assert place.target == "127.0.0.1 4000"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert publish(path, "127.0.0.1 4000").secret != place.secret


def test_a_proof_is_of_one_purpose_and_one_secret(tmp_path: Path) -> None:
    place, other = (publish(tmp_path / name, "here") for name in ("place", "other"))
    assert place.is_proof(place.proof("to reader-0"), "to reader-0")
    for said in (place.proof("from reader-0"), other.proof("to reader-0"), "ü", b"x", None):
        assert not place.is_proof(said, "to reader-0")


@pytest.mark.parametrize("content", [b"", b"here", b"here\n1\n2", b"\xff\n1"])
def test_a_damaged_file_is_one_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "place"
    path.write_bytes(content)
    with pytest.raises(OSError, match="place is damaged; destroy the channel"):
        find(path)
