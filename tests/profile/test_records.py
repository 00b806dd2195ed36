"""profile.json: what is written is read again; what is no profile is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ipcbench.errors import StoreError
from ipcbench.profile.records import Call, Profile, Setting, Span, Step, Unavailable, read_profile, write_profile
from tests.profile.built import built


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    profile = Profile(
        Setting(model="qwen3-tiny", parallel="tp2", transport="shm"),
        steps=(Step(0, 1, "prefill", 0, "spans", 5, 10),),
        spans=(Span(0, 1, "layers.0", "layer", 5, 9, 4),),
        calls=(Call(0, 1, 0, "all_reduce", (0, 1), 4096, "float32", "layers.0.mlp"),),
        unavailable=(Unavailable("NVLink topology", "2 GPUs"),),
        clock_error_ns=2**62,  # of several hosts, whose clocks nobody has compared
    )
    assert read_profile(write_profile(tmp_path / "new", profile)) == profile
    assert read_profile(tmp_path / "new") == profile


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": "ipcbench run", "version": 1, "profile": {}}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "profile.json").write_bytes(data)
    with pytest.raises(StoreError, match="no profile: "):
        read_profile(tmp_path)


@pytest.mark.parametrize("wall_ns", [0, -5])
def test_a_step_that_ends_before_it_begins_is_damage(tmp_path: Path, wall_ns: int) -> None:
    steps = (Step(0, 0, "prefill", 0, "plain", 5, wall_ns),)
    write_profile(tmp_path, Profile(Setting(model="qwen3-tiny"), steps=steps))
    with pytest.raises(StoreError, match=r"no profile: .*steps") as caught:
        read_profile(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_profile_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="name the folder of a profile"):
        read_profile(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bytes": -5}, "Expected `int` >= 0"),
        ({"bytes": 2**62}, "Expected `int`"),
        ({"ranks": ()}, "is of no group"),
        ({"op": "foo"}, "Invalid enum value 'foo'"),
        ({"ranks": (0, 1, 1)}, "has a rank twice"),
        ({"ranks": (-1, 0)}, "Expected `int` >= 0"),
        ({"step": -1}, "Expected `int` >= 0"),
        ({"op": "send", "ranks": (0,)}, "is a send of 1 ranks, not 2"),
        ({"enter_ns": 9, "exit_ns": 5}, "ends before it begins"),
        ({"enter_ns": 5, "exit_ns": 9, "wait_ns": 5}, "waits longer than it takes"),
    ],
    ids=str,
)
def test_a_call_that_no_run_can_have_recorded_is_damage(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Each was a traceback, or 720 % of a step."""
    made = built()
    write_profile(tmp_path, replace(made, calls=(msgspec.structs.replace(made.calls[0], **change), *made.calls[1:])))
    with pytest.raises(StoreError, match=rf"no profile: .*{words}"):
        read_profile(tmp_path)


@pytest.mark.parametrize("part", ["steps", "spans", "calls"])
def test_a_rank_below_0_is_damage(part: str, tmp_path: Path) -> None:
    """A timeline of it was a traceback, or had the tracks of another rank."""
    made = built()
    rows = getattr(made, part)
    write_profile(tmp_path, replace(made, **{part: (msgspec.structs.replace(rows[0], rank=-1), *rows[1:])}))
    with pytest.raises(StoreError, match="no profile: "):
        read_profile(tmp_path)


def test_a_step_without_its_spans_is_damage(tmp_path: Path) -> None:
    made = built()
    write_profile(tmp_path, replace(made, spans=()))
    with pytest.raises(StoreError, match="no profile: step 0 of rank 0 lacks its spans"):
        read_profile(tmp_path)
