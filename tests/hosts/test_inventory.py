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
        ("a[1-2]b[1-2]", ["a1b1", "a1b2", "a2b1", "a2b2"]),
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
        ("lab.toml", "[hosts.a]\nslots = 0", ["hosts.a.slots", "1 to 100,000"]),
        ("lab.toml", "[hosts.a]\nslots = 99999999999", ["hosts.a.slots", "1 to 100,000"]),
        pytest.param("lab.toml", f"[hosts.a]\nslots = {'1' * 5_000}", ["lab.toml", "too long"], id="digits in TOML"),
        ("lab.toml", "[hosts.a]\npython = ''", ["hosts.a.python", "the path of the Python"]),
        ("lab.toml", "[hosts.a]\nslot = 1", ["[hosts.NAME]", "slot"]),
        ("lab.toml", "hosts", ["[hosts.NAME]"]),
        ("hosts", "a b", ["line 1", "'a b'", "slots=4"]),
        ("hosts", "a slots=0", ["line 1"]),
        ("hosts", "a slots=100001", ["line 1", "1 to 100,000 slots"]),
        pytest.param("hosts", f"a slots={'1' * 5_000}", ["line 1", "1 to 100,000 slots"], id="digits"),
        pytest.param(",".join(f"a{number}" for number in range(10_001)), None, ["at most 10,000"], id="many hosts"),
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


@pytest.mark.parametrize("name", ["hosts", "lab.toml"])
def test_a_file_that_is_not_utf_8_is_refused(name, tmp_path) -> None:
    (tmp_path / name).write_bytes(b"# all\n# Z\xfcrich\n")
    with pytest.raises(ConfigError, match=f"{name}' is not valid; allowed: a file in UTF-8, which line 2"):
        read_hosts(str(tmp_path / name))


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.1.1", "::1", "localhost", "LOCALHOST.", "0.0.0.0", "::", "::ffff:127.0.0.1"]
)
def test_an_address_of_loopback_is_only_for_a_single_host(address, tmp_path) -> None:
    inventory, host_b = tmp_path / "lab.toml", f'[hosts.b]\naddress = "{address}"\n'
    inventory.write_text(host_b)
    assert read_hosts(str(inventory))[0].address == address
    inventory.write_text(f"[hosts.a]\n{host_b}")
    with pytest.raises(ConfigError, match=f"address of host b: '{address}' is not valid.*the other hosts reach it"):
        read_hosts(str(inventory))


def test_names_may_be_longer_together_than_the_name_of_a_file() -> None:
    listed = [f"gpu-{number}.laboratory" for number in range(40)]
    assert names(",".join(listed)) == listed


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("b,a[1-", ["'a[1-'", "a[1-3,07]"]),
        ("a[1-],b", ["'a[1-]'"]),
        ("a[]", ["'a[]'"]),
        ("a1]", ["'a1]'"]),
        ("a[3-1]", ["'a[3-1]'", "low to high"]),
        ("a[1-100000000]", ["at most 10,000 hosts"]),
        ("a[1-200]b[1-200]", ["at most 10,000 hosts"]),
        ("a[1-9999],b[1-2]", ["'b[1-2]'", "at most 10,000 hosts"]),
    ],
)
def test_bad_lists_of_nodes_are_refused(nodes, words) -> None:
    with pytest.raises(ConfigError) as refused:
        expanded(nodes)
    assert all(word in str(refused.value) for word in ["SLURM_JOB_NODELIST", *words]), refused.value


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
