"""Why a host has no agent, from what its launcher said."""

from __future__ import annotations

import pytest

from ipcbench.hosts.remote import why_no_agent

_HYDRA = "[proxy:0@b] HYDU_create_process (launch.c:73): execvp error on file /opt/python (Permission denied)"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ("me@b: Permission denied (publickey,password).", 255, "refuses to let this user in"),
        ("sh: 1: exec: /opt/python: Permission denied", 126, "cannot run its Python '/opt/python'"),
        ("bash: line 1: /opt/python: Is a directory", 126, "cannot run its Python '/opt/python'"),
        (_HYDRA, 255, "cannot run its Python '/opt/python'"),
        ("sh: 1: exec: /opt/python: not found", 127, "has no program '/opt/python'"),
        ("/opt/python: No module named ipcbench", 1, "lacks ipcbench for /opt/python"),
        ("ssh: connect to host b port 22: Permission denied", 255, "ssh: connect to host b port 22: Permission denied"),
        ("PermissionError: [Errno 13] Permission denied: '/tmp'", 1, "PermissionError: [Errno 13]"),
        ("", 1, ""),
    ],
)
def test_only_what_ssh_denies_is_a_matter_of_passwords(words, code, why) -> None:
    said = why_no_agent(words, code, "/opt/python")
    assert said.startswith(why)
    assert words in said
