"""Which hosts take part, and where endpoints run."""

from __future__ import annotations

import sys

import pytest

from ipcbench.cli import main
from ipcbench.errors import ConfigError, StoreError
from ipcbench.hosts.inventory import Host, expanded, place, read_hosts
from ipcbench.hosts.launchers import SHELL_VARIABLE, remote_shell


def names(text: str) -> list[str]:
    return [host.name for host in read_hosts(text)]


def test_names_files_and_allocations(tmp_path, monkeypatch) -> None:
    assert names("a, b,c") == ["a", "b", "c"]
    assert read_hosts("me@gpu-1.lab,10.0.0.7")[0] == Host("me@gpu-1.lab", sys.executable)
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# all\na\n\nb slots=4  # large\nc:2\n")
    assert [(host.name, host.slots) for host in read_hosts(str(hostfile))] == [("a", 1), ("b", 4), ("c", 2)]
    inventory = tmp_path / "lab.toml"
    inventory.write_text('[hosts.a]\n[hosts.b]\npython = "/opt/python"\nslots = 3\naddress = "10.0.0.2"\n')
    assert read_hosts(str(inventory))[1] == Host("b", "/opt/python", 3, "10.0.0.2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[08-10],login")
    assert names("slurm") == ["n08", "n09", "n10", "login"]


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1,3-4,07]x,b", ["n1x", "n3x", "n4x", "n07x", "b"]),
    ],
)
def test_lists_of_nodes_as_slurm_writes_them(nodes, found) -> None:
    assert expanded(nodes) == found


@pytest.mark.parametrize(
    ("text", "content", "words"),
    [
        ("a,,b", None, ["--hosts", "''", "names of hosts"]),
        ("a,b,a", None, ["each host once, not a again"]),
        ("-o,b", None, ["'-o'"]),
        ("a;reboot", None, ["a;reboot"]),
        ("slurm", None, ["SLURM_JOB_NODELIST is not set"]),
        ("lab.toml", "[hosts.a]\nslots = 0", ["hosts.a.slots", "1 or more"]),
        ("lab.toml", "[hosts.a]\nslot = 1", ["[hosts.NAME]", "slot"]),
        ("lab.toml", "hosts", ["[hosts.NAME]"]),
        ("hosts", "a b", ["line 1", "'a b'", "slots=4"]),
        ("hosts", "a slots=0", ["line 1"]),
        ("hosts", "# none", ["names of hosts"]),
    ],
)
def test_bad_inventories_are_refused(text, content, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    if content is not None:
        (tmp_path / text).write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_hosts(text)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_file_that_is_not_there_is_said(tmp_path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        read_hosts(str(tmp_path / "lab.toml"))


def test_places() -> None:
    hosts = (Host("a", slots=2), Host("b", slots=2), Host("c"))
    assert place("spread", hosts, 5) == (0, 1, 2, 0, 1)
    assert place("pack", hosts, 5) == (0, 0, 1, 1, 2)
    assert place("writer=b", hosts, 5) == (1, 0, 2, 0, 2)
    assert place("writer=a", hosts[:1], 3) == (0, 0, 0), "a single host has all"
    for rule, words in {"pack": "6 slots", "writer=d": "one of a, b, c", "near": "spread"}.items():
        with pytest.raises(ConfigError, match=words):
            place(rule, hosts, 6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--launch", "hydra"], "--launch: 'hydra' is not valid; allowed: this only with --hosts"),
        (["--place", "pack"], "--place: 'pack' is not valid; allowed: this only with --hosts"),
        (["--hosts", ""], "--hosts: '' is not valid"),
        (
            ["--hosts", "a", "--launch", "rsh"],
            "--launch: 'rsh' is not valid (did you mean 'ssh'?); allowed: ssh",
        ),
    ],
    ids=str,
)
def test_options_of_hosts_are_not_ignored(options, words, tmp_path, capsys) -> None:
    assert main(["run", "--backends", "tcp", "--out", str(tmp_path / "run"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_remote_shell(monkeypatch) -> None:
    monkeypatch.setenv(SHELL_VARIABLE, f"{sys.executable} -u")
    assert remote_shell() == [sys.executable, "-u"]
    for named in ("no-such-program", "'"):
        monkeypatch.setenv(SHELL_VARIABLE, named)
        with pytest.raises(ConfigError, match=SHELL_VARIABLE):
            remote_shell()
