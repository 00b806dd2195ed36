"""Sweep files and options: one table, one meaning, errors that say where."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from ipcbench.errors import ConfigError
from ipcbench.registry import get_backend
from ipcbench.spec import SweepSpec, Variant
from ipcbench.sweeps.load import KEYS, builtin_sweeps, describe_sweep, load_sweep
from ipcbench.workload.payload import load_sample

EXAMPLES = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.toml"))


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_field_of_a_sweep_has_one_key() -> None:
    """Writers of a fan-in and clients of rpc are the same to a sweep."""
    names = sorted(key.field for key in KEYS if key.name != "clients")
    assert names == sorted({field.name for field in fields(SweepSpec)} - {"name"})
    assert KEY_FIELDS["clients"] == KEY_FIELDS["writers"] == "peers"
    assert len({key.name for key in KEYS}) == len(KEYS)


def test_the_default_sweep_file_says_what_the_defaults_are() -> None:
    assert load_sweep() == SweepSpec()


@pytest.mark.parametrize("name", builtin_sweeps())
def test_built_in_sweep_is_valid_and_described(name: str) -> None:
    sweep = load_sweep(name)
    assert sweep.name == name
    assert describe_sweep(name).endswith(".")
    assert name == "default" or sweep != load_sweep()
    for backend in sweep.backends:
        assert sweep.delivery in get_backend(backend).capabilities.deliveries


def test_built_in_names() -> None:
    assert builtin_sweeps() == (
        *(
            "default",
            "all",
            "bytes",
            "fan-in",
            "large",
            "queue",
            "rpc",
            "shared",
            "small",
            "streaming",
            "tensor",
            "today",
        ),
        "versions",
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_sweep_is_valid(path: Path) -> None:
    sweep = load_sweep(str(path))
    assert sweep.name == path.stem
    for backend in sweep.backends:
        assert sweep.delivery in get_backend(backend).capabilities.deliveries


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


def test_readers_of_the_three_sizes_of_machine() -> None:
    assert [load_sweep(name).readers for name in ("small", "default", "large")] == [1, 3, 7]


ALL_KEYS = {
    "backends": ("shm,null", ["shm", "null"], ("shm", "null")),
    "base": ("shm", "shm", "shm"),
    "variant": (("a=/bin/x", "b=/y"), ["a=/bin/x", "b=/y"], (Variant("a", "/bin/x"), Variant("b", "/y"))),
    "readers": ("2", 2, 2),
    "payload": ("bytes", "bytes", "bytes"),
    "sizes": ("64,1KiB,4MiB", ["64", "1KiB", "4MiB"], (64, 1024, 4 * 2**20)),
    "codec": ("raw", "raw", "raw"),
    "delivery": ("latest_value", "latest_value", "latest_value"),
    "mode": ("saturate", ["saturate"], ("saturate",)),
    "rate": ("2k/s", 2000, 2000.0),
    "rounds": ("4", 4, 4),
    "budget": ("2min", 120, 120.0),
    "precision": ("2%", 0.02, 0.02),
    "trips": ("paced", "paced", "paced"),
    "control": ("no", "no", False),
    "look": ("no", "no", False),
    "tail": ("no", "no", False),
    "seed": ("7", 7, 7),
    "depth": ("8", 8, 8),
    "wait": ("block", "block", "block"),
    "pin": ("0,1", [0, 1], "0,1"),
    "touch": ("pages", "pages", "pages"),
    "neighbours": ("0,2", [0, 2], (0, 2)),
    "window": ("100ms", 0.1, 0.1),
    "warmup": ("20ms", "0.02", 0.02),
}


PATTERN_KEYS = {"pattern", "writers", "batch", "load", "clients", "in-flight", "reply", "service", "p99-limit"}
"""Of queues, fan-in and rpc, see test_pattern_figures.py."""
KEY_FIELDS = {key.name: key.field for key in KEYS}


def test_a_sample_in_a_file_needs_no_size_and_allows_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"12345")
    sweep = load_sweep(write(tmp_path, f"sample = {str(tmp_path / 'notes.txt')!r}\n"))
    assert (sweep.payload, sweep.sizes) == ("sample", (5,))
    with pytest.raises(ConfigError, match=r"sizes in .*mine.toml: \[5\] is not valid; allowed: nothing beside sample"):
        load_sweep(write(tmp_path, f"sizes = [5]\nsample = {str(tmp_path / 'notes.txt')!r}\n"))


def test_a_file_and_options_mean_the_same(tmp_path: Path) -> None:
    assert {*ALL_KEYS, "sample", *PATTERN_KEYS} == {key.name for key in KEYS}
    lines = [f"{name} = {in_file!r}" for name, (_, in_file, _) in ALL_KEYS.items()]
    from_file = load_sweep(write(tmp_path, "\n".join(lines)))
    from_options = load_sweep("default", {name: option for name, (option, _, _) in ALL_KEYS.items()})
    for name, (_, _, value) in ALL_KEYS.items():
        field = KEY_FIELDS[name]
        assert getattr(from_file, field) == getattr(from_options, field) == value
    assert (from_file.name, from_options.name) == ("mine", "default")


def test_an_option_overrides_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "readers = 2\nrate = 500\nrounds = 9\n")
    sweep = load_sweep(path, {"readers": "5", "rate": "auto"})
    assert (sweep.readers, sweep.rate_per_s, sweep.rounds) == (5, None, 9)


def test_sizes_take_the_payload_from_wherever_it_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, 'payload = "bytes"\n')
    assert load_sweep(path, {"sizes": "1KiB"}).sizes == (1024,)
    assert load_sweep(write(tmp_path, "sizes = [64]\n"), {"payload": "ndarray"}).sizes == (64,)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sizs = [1]\n", ["key in", "mine.toml", "'sizs'", "sizes", "warmup"]),
        ("readers = 0\n", ["readers in", "mine.toml", "0 is not valid", "1 to 1,024"]),
        ("readers = 1.5\n", ["readers in", "1.5", "whole number"]),
        ("readers = true\n", ["readers in", "True"]),
        ('sizes = ["1KiB"]\n', ["sizes in", "'1KiB'", "a number of entries", "--payload bytes"]),
        ('payload = "bytes"\nsizes = ["1Kb?"]\n', ["sizes in", "'1Kb?'", "KiB"]),
        ('payload = "bytes"\nsizes = ["0.3"]\n', ["sizes in", "whole number of bytes"]),
        ('mode = ["paced", "fast"]\n', ["mode in", "'fast'", "saturate"]),
        ("mode = []\n", ["mode in", "one or more"]),
        ("backends = [1.5, []]\n", ["backends in"]),
        ('budget = "soon"\n', ["budget in", "'soon'", "60s"]),
        ("rate = 0\n", ["rate in", "above zero"]),
        ("codec = 3\n", ["codec in", "a text"]),
        ('codec = "raw"\n', ["codec in", "'raw'", "pickle"]),
        ("readers = \n", ["mine.toml", "a TOML file", "line 1"]),
        ("[table]\nreaders = 1\n", ["key in", "'table'"]),
    ],
)
def test_a_mistake_in_a_file_says_what_and_where(tmp_path: Path, text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep(write(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"readers": "-1"}, ["--readers", "-1", "1 to 1,024"]),
        ({"readers": "three"}, ["--readers", "'three'", "whole number"]),
        ({"sizes": "1KiB"}, ["--sizes", "'1KiB'", "a number of entries"]),
        ({"sizes": "10,10"}, ["--sizes", "each once"]),
        ({"sizes": "-5"}, ["--sizes", "-5"]),
        ({"sizes": ""}, ["--sizes", "''"]),
        ({"window": "1ms"}, ["--window", "0.001", "0.01 to 3,600"]),
        ({"nonsense": "1"}, ["option", "'nonsense'", "readers"]),
    ],
)
def test_a_mistake_in_an_option_names_the_option(options: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep("default", options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["nope", "", "../small", "small.tom"])
def test_an_unknown_sweep_lists_the_known(name: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"default, all, bytes, fan-in, .*, streaming, tensor, today, versions or the path",
    ):
        load_sweep(name)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_sweep(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_sweep(str(tmp_path / "binary.toml"))
    with pytest.raises(ConfigError, match=r"known|default"):
        describe_sweep("none")


def test_what_may_have_no_end_is_neither_a_sweep_nor_a_sample(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for name, options in ((str(tmp_path / "pipe.toml"), {}), ("default", {"sample": "/dev/zero"})):
        with pytest.raises(ConfigError, match="it is a pipe or a device; copy what it gives into a file"):
            load_sweep(name, options)
    with pytest.raises(ConfigError, match="it is a pipe or a device"):
        load_sample(Path("/dev/zero"))
