"""The temporary folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ipcbench.errors import StoreError
from ipcbench.util.files import temporary_folder, write_atomically

_CHANNEL = """
import tempfile
from ipcbench.registry import get_backend
from ipcbench.spec import ChannelSpec
backend = get_backend("shm")()
address = backend.create(ChannelSpec("ipcb-tried", readers=1, max_message_bytes=8))
backend.open_reader(address, 0).close()
backend.destroy(address)
print(tempfile.tempdir)
"""


def test_the_temporary_folder_is_the_first_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    monkeypatch.setenv("TEMP", str(tmp_path / "absent"))
    monkeypatch.setenv("TMP", str(tmp_path))
    assert temporary_folder() == tmp_path
    monkeypatch.setenv("TEMP", "")
    monkeypatch.setenv("TMP", "")
    assert temporary_folder() == Path("/tmp")


def test_a_channel_writes_no_file_to_try_the_temporary_folder() -> None:
    """`tempfile.gettempdir` does, and keeps the folder that it found in `tempfile.tempdir`; killed meanwhile, the
    process leaves the file.
    """
    done = subprocess.run([sys.executable, "-c", _CHANNEL], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_a_refused_file_is_called_by_the_name_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "absent" / "x.json", tmp_path / "file" / "x.json", tmp_path):
        with pytest.raises(StoreError) as caught:
            write_atomically(path, lambda file: file.write(b"text"))
        assert str(caught.value).startswith(f"{path}: ")
        assert ".tmp" not in str(caught.value)
    assert [each.name for each in tmp_path.parent.iterdir() if each.name.endswith(".tmp")] == []
