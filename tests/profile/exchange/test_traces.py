"""Calls of other tools: what they wrote is read, what is written for them is read again, what is damaged is refused."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import msgspec
import pytest

from ipcbench.cli import main
from ipcbench.errors import ConfigError, StoreError
from ipcbench.profile.comm.replay import replay
from ipcbench.profile.exchange.traces import read_calls, unfit, write_calls
from ipcbench.profile.files import as_json
from ipcbench.profile.files.tables import sentences
from ipcbench.profile.records import Call, Profile, read_profile, write_profile
from ipcbench.profile.summary import summarize
from ipcbench.util.files import write_bytes
from tests.profile.built import built, without_times


def kineto(rank: int, *events: dict[str, Any]) -> dict[str, Any]:
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": list(events)}


def comms(name: str, at_us: float, **more: Any) -> dict[str, Any]:
    said = {"Collective name": name, "In msg nelems": 256, "Out msg nelems": 256, "dtype": "Float", "Group size": 2}
    return {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": at_us, "dur": 20.5, "args": said | more}


def operator(name: str, dims: list[Any], kinds: list[str], inputs: list[str] | None = None) -> dict[str, Any]:
    said = {"Input Dims": dims, "Input type": kinds, "Concrete Inputs": inputs or []}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1, "dur": 2, "args": said}


def bare(call: Call) -> Call:
    """Return a call without what no other tool's format has."""
    return msgspec.structs.replace(call, wait_ns=None, match=None, gap_ns=None)


def to_param(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Return what PARAM would have recorded of a rank."""
    rows, sizes = [], {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}
    for number, call in enumerate(calls):
        dtype = call.dtype or "uint8"  # whose elements are bytes
        count = call.bytes // sizes.get(dtype, 1)
        part = count // max(1, len(call.ranks))
        ends = {"src_rank": call.ranks[0], "dst_rank": call.ranks[1]} if call.op in {"send", "recv"} else {}
        times = {"startTime_ns": call.enter_ns, "duration_ns": call.took_ns, "gap_ns": call.gap_ns}
        rows.append({
            "comms": call.op, "req": number, "step": call.step, "markers": [call.path], "world_size": len(call.ranks),
            "in_msg_size": part if call.op == "all_gather" else count, "global_ranks": call.ranks,
            "out_msg_size": part if call.op == "reduce_scatter" else count, "dtype": dtype, **ends,
            **{name: value for name, value in times.items() if value is not None},
        })  # fmt: skip
    return rows


@pytest.mark.parametrize("form", ["chakra", "param"])
@pytest.mark.parametrize("is_planned", [False, True])
def test_what_is_written_for_another_tool_is_read_again(tmp_path: Path, form: str, is_planned: bool) -> None:
    made = built(repetitions=1, layers=2)
    made = without_times(made) if is_planned else made
    more = [Call(0, 99, 0, "send", (0, 1), 6, "bfloat16", "layers.1", 5, 9, None, None, 5),
            Call(1, 99, 0, "recv", (0, 1), 6, "bfloat16", "", 6, 9, None, None, 2),
            Call(0, 99, 1, "all_gather", (0, 1), 4096, "float16", "lm_head", 12, 19, None, None, 3),
            Call(0, 99, 2, "reduce_scatter", (0, 1), 4096, "int64", "", 20, 21, None, None, 1)]  # fmt: skip
    made = replace(made, calls=(*made.calls, *more))
    if form == "chakra":
        files = write_calls(made, form, tmp_path / "out")
        assert [file.name for file in files] == ["0.json", "1.json"]
    else:
        for rank in made.ranks:
            rows = to_param([call for call in made.calls if call.rank == rank])
            write_bytes(tmp_path / "out" / f"{rank}.json", as_json(rows))
    again = read_calls([tmp_path / "out"], form)
    assert not again.is_planned
    by_rank = sorted(made.calls, key=lambda call: (call.rank, call.step, call.sequence))
    assert sorted(map(bare, again.calls), key=lambda call: (call.rank, call.step, call.sequence)) == [
        *map(bare, by_rank)
    ]
    assert [call.gap_ns for call in again.calls if call.step == 99] == [5, 3, 1, 2]


def test_a_trace_of_kineto_is_read(tmp_path: Path) -> None:
    ranks = {"Process Group Ranks": "[0, 1]"}
    for rank, late in ((0, 0.0), (1, 7.0)):
        trace = kineto(
            rank,
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5, "args": {}},
            comms("allreduce", 90.0, **ranks, **{"External id": 7}) | {"dur": 0.5},
            comms("allreduce", 100.0 + late, **ranks, **{"External id": 7}) | {"cat": "kernel"},
            comms("_allgather_base", 200.0, **ranks, **{"Out msg nelems": 512, "dtype": "BFloat16"}),
            comms("wait", 250.0),
            comms("allreduce_sparse_special", 260.0),
            comms("teleport", 270.0),
            comms("send" if rank == 0 else "recv", 300.0, **{"Src Rank": 0, "Dst Rank": 1}),
        )
        (tmp_path / f"r{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    found = read_calls([tmp_path], "kineto")
    mine = [call for call in found.calls if call.rank == 0]
    assert [(call.op, call.bytes, call.dtype, call.ranks) for call in mine] == [
        ("all_reduce", 1024, "float32", (0, 1)),
        ("all_gather", 1024, "bfloat16", (0, 1)),
        ("all_reduce", 1024, "float32", (0, 1)),
        ("send", 1024, "float32", (0, 1)),
    ]
    assert (mine[0].enter_ns, mine[0].exit_ns, mine[1].gap_ns) == (100_000, 120_500, 79_500)
    assert [call.exit_ns for call in mine[1:]] == [None] * 3  # the launch ends at once, and no kernel says more
    assert "2 calls of teleport were left out." in found.remarks
    assert summarize(found).profile.calls[0].wait_ns == 7_000


def test_operators_of_c10d_are_read_where_nothing_else_is(tmp_path: Path) -> None:
    reduced = operator("c10d::allreduce_", [[[1024]], []], ["TensorList", ""])
    events = [
        reduced, reduced, operator("gloo:all_reduce", [[1024]], ["float"]),
        operator("c10d::allgather_", [[], [[256]]], ["", "TensorList"]),
        operator("gloo:all_gather", [[256]], ["long int"]),
        operator("c10d::send", [[[8]], [], [], []], ["TensorList", "", "Scalar", "Scalar"], ["", "", "0", "7"]),
        operator("gloo:send", [[8]], ["c10::Half"]),
        operator("c10d::barrier", [[1]], ["unsigned char"]),
    ]  # fmt: skip
    (tmp_path / "0.json").write_text(json.dumps(kineto(0)))
    (tmp_path / "1.json").write_text(json.dumps(kineto(1, *events)))
    found = read_calls([tmp_path], "kineto")
    assert [(call.op, call.bytes, call.dtype, call.ranks) for call in found.calls] == [
        *[("all_reduce", 4096, "float32", (0, 1))] * 2, ("all_gather", 4096, "int64", (0, 1)),
        ("send", 16, "float16", (1, 0)),
        ("barrier", 0, "uint8", (0, 1)),
    ]  # fmt: skip
    assert found.setting is None
    assert "operations of ranks 0, 1 in step 0: 0 at rank 0, 4 at rank 1; " in found.remarks[0]
    assert next(sentences(summarize(found))).startswith("These traces do not fit together")
    with pytest.raises(StoreError, match="0 at rank 0, 4 at rank 1"):
        replay(found, ["shm"])
    for bad, why in (
        (reduced, "does not say its data type"),
        (operator("c10d::recv_any_source_", [[[8]]], ["float"]), "peer"),
    ):
        (tmp_path / "1.json").write_text(json.dumps(kineto(1, bad)))
        with pytest.raises(StoreError, match=why):
            read_calls([tmp_path / "1.json"], "kineto")


def gloo(*said: tuple[str, list[Any], list[str]], every_us: float = 100.0) -> dict[str, Any]:
    """Return a trace of rank 0 with such operators; a work of gloo's begins 9 us after its call and takes 80."""
    at_us, events = -every_us, []
    for name, dims, kinds in said:
        is_call = name.startswith("c10d")
        at_us += every_us * is_call
        events.append(operator(name, dims, kinds) | {"ts": at_us + (0 if is_call else 9), "dur": 1 if is_call else 80})
    return kineto(0, *events)


def test_sizes_and_times_of_gloo_are_those_of_the_work_that_a_call_begins(tmp_path: Path) -> None:
    """Tensors without a dimension had 0 bytes, gather one rank's part, and a call ended when it had begun its work."""
    two, nothing = ["TensorList", "TensorList"], ["", "TensorList"]
    trace = gloo(
        ("c10d::allreduce_", [[[]]], ["TensorList"]), ("gloo:all_reduce", [[]], ["float"]),
        ("c10d::broadcast_", [[[]]], ["TensorList"]), ("gloo:broadcast", [[]], ["long int"]),
        ("c10d::gather_", [[], [[16]]], nothing), ("gloo:gather", [[16]], ["float"]),
        ("c10d::reduce_scatter_", [[[16]], []], ["TensorList", ""]),
        ("gloo:all_reduce", [[16]], ["float"]), ("gloo:all_reduce", [[16]], ["float"]),
        ("c10d::alltoall_", [[[16], [16]], [[16], [16]]], two), ("gloo:all_to_all", [[16], [16]], ["float", "float"]),
        ("c10d::allreduce_coalesced_", [[[16], [32]]], ["TensorList"]), ("gloo:all_reduce", [[16], [32]], ["float"]),
        ("c10d::allgather_into_tensor_coalesced_", [[[32]], [[16]]], two), ("gloo:all_gather", [[16]], ["float"]),
        ("c10d::_reduce_scatter_base_", [[16], [32]], ["float", "float"]), ("gloo:all_reduce", [[32]], ["float"]),
        ("c10d::barrier", [[1]], ["unsigned char"]), ("gloo:barrier", [], []),
    )  # fmt: skip
    (tmp_path / "0.json").write_text(json.dumps(trace))
    (tmp_path / "1.json").write_text(json.dumps(trace | kineto(1, *trace["traceEvents"])))
    found = [call for call in read_calls([tmp_path], "kineto").calls if call.rank == 0]
    assert [(call.op, call.dtype, call.bytes) for call in found] == [
        ("all_reduce", "float32", 4), ("broadcast", "int64", 8), ("gather", "float32", 128),
        ("reduce_scatter", "float32", 128), ("all_to_all", "float32", 128), ("all_reduce", "float32", 192),
        ("all_gather", "float32", 128), ("reduce_scatter", "float32", 128), ("barrier", "uint8", 0),
    ]  # fmt: skip
    assert {call.took_ns for call in found} == {80_000}
    assert [call.enter_ns for call in found[:2]] == [9_000, 109_000]


def test_a_call_that_waits_in_gloo_s_queue_is_not_under_way(tmp_path: Path) -> None:
    """Waiting behind the calls before counted as transfer, and GB/s were a twelfth of what they were."""
    calls = [operator("c10d::allreduce_", [[[8]]], ["float"]) | {"ts": place} for place in range(3)]
    works = [operator("gloo:all_reduce", [[8]], ["float"]) | {"ts": 10 * (1 + place), "dur": 10} for place in range(3)]
    (tmp_path / "0.json").write_text(json.dumps(kineto(0, *calls, *works) | {"distributedInfo": {"world_size": 1}}))
    found = read_calls([tmp_path], "kineto")
    assert [(call.enter_ns, call.took_ns) for call in found.calls] == [(10_000 * n, 10_000) for n in (1, 2, 3)]
    assert any("do not say the group" in remark for remark in found.remarks)


def test_a_launch_has_the_kernels_of_its_own_operation(tmp_path: Path) -> None:
    """The last kernel of several counted, and any of the same number."""
    of = {"Process Group Ranks": "[0]"}

    def kernel(at_us: float, launch: int, name: str = "allreduce", **more: Any) -> dict[str, Any]:
        return comms(name, at_us, **of, **{"External id": launch}) | {"cat": "kernel"} | more

    trace = [
        comms("allreduce", 1.0, **of, **{"External id": 1}), kernel(10.0, 1), kernel(100.0, 1),
        comms("allreduce", 2.0, **of, **{"External id": 2}), kernel(200.0, 2, "broadcast"),
        comms("allreduce", 3.0, **of, **{"External id": 3}), comms("allreduce", 4.0, **of, **{"External id": 3}),
        kernel(300.0, 3), comms("allreduce", 5.0, **of, **{"External id": 4}), kernel(400.0, 4, dur=None),
    ]  # fmt: skip
    (tmp_path / "0.json").write_text(json.dumps(kineto(0, *trace)))
    found = [(call.enter_ns, call.took_ns) for call in read_calls([tmp_path / "0.json"], "kineto").calls]
    assert found == [(10_000, 110_500), (2_000, None), (3_000, None), (4_000, None), (400_000, None)]


def test_a_call_without_its_work_has_no_known_end(tmp_path: Path) -> None:
    trace = gloo(*[("c10d::allreduce_", [[[8]]], ["float"])] * 2, ("gloo:all_reduce", [[8]], ["float"]))
    (tmp_path / "0.json").write_text(json.dumps(trace | {"distributedInfo": {"rank": 0, "world_size": 1}}))
    assert [call.took_ns for call in read_calls([tmp_path], "kineto").calls] == [None, None]
    (tmp_path / "0.json").write_text(json.dumps(kineto(0, {"ph": "X", "name": "c10d::barrier", "args": {}})))
    with pytest.raises(StoreError, match="c10d::barrier does not say when it began"):
        read_calls([tmp_path / "0.json"], "kineto")


def test_tensors_of_one_size_and_several_types_are_told_apart_by_order(tmp_path: Path) -> None:
    """Calls of gloo had no type where another had one of the same size and another type, and were refused."""

    def at(ts: float, name: str, kind: str) -> dict[str, Any]:
        return operator(name, [[[256]]] if name.startswith("c10d") else [[256]], [kind]) | {"ts": ts}

    kinds, events = ("float", "double", "signed char", "c10::complex<float>"), []
    for place, kind in enumerate(kinds):
        events += [at(10.0 * place, "c10d::allreduce_", "TensorList"), at(10.0 * place + 9, "gloo:all_reduce", kind)]
    (tmp_path / "0.json").write_text(json.dumps(kineto(0, *events)))
    (tmp_path / "1.json").write_text(json.dumps(kineto(1, *events)))
    found = [(call.dtype, call.bytes) for call in read_calls([tmp_path], "kineto").calls if call.rank == 0]
    assert found == [("float32", 1024), ("float64", 2048), ("int8", 256), ("complex64", 2048)]
    late = [*events[:3], events[3] | {"ts": 25.0}, *events[4:]]  # behind the next call: of which of both is not known
    for bad in (late, events[:-1]):
        (tmp_path / "1.json").write_text(json.dumps(kineto(1, *bad)))
        with pytest.raises(StoreError, match="does not say its data type"):
            read_calls([tmp_path], "kineto")


def test_calls_that_do_not_say_their_group_are_refused(tmp_path: Path) -> None:
    """Those of two pairs of ranks became one operation of four, and a replay ended in a traceback."""
    reduced = operator("c10d::allreduce_", [[[64]], []], ["float", ""])
    several, alone = kineto(0, reduced), {"traceEvents": [reduced]}
    several["distributedInfo"]["pg_config"] = [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": [0, 1]}]
    recorded = {"traceEvents": [comms("allreduce", 1.0)]}
    for trace, why in (
        (several, r"c10d::allreduce_ does not say in which of the 2 process groups it is$"),
        (alone, r"c10d::allreduce_ does not say which ranks are in its process group$"),
        (recorded, r"allreduce does not say which ranks are in its process group$"),
    ):
        (tmp_path / "0.json").write_text(json.dumps(trace))
        with pytest.raises(StoreError, match=why):
            read_calls([tmp_path / "0.json"], "kineto")


def traces(folder: Path, *ranks: list[dict[str, Any]]) -> list[Path]:
    """Write traces of PARAM, a file a rank."""
    for rank, rows in enumerate(ranks):
        write_bytes(folder / f"trace_rank{rank}_20261127.json", as_json(rows))
    return sorted(folder.iterdir())


def reduce(number: int, start_ns: int, took_ns: int = 1000, **more: Any) -> dict[str, Any]:
    return {"comms": "all_reduce", "req": number, "in_msg_size": 64, "dtype": "float", "global_ranks": [0, 1],
            "startTime_ns": start_ns, "duration_ns": took_ns} | more  # fmt: skip


def test_calls_twice_are_told_from_a_coarse_clock(tmp_path: Path) -> None:
    """Calls of other sizes in one tick of a clock, and those that all began at 0, were called doubled."""
    apart = [reduce(place, 10_000 * place + 7, 3000) for place in range(4)]
    again = "calls that are there twice, with the same begin and end: 2"
    cases = (
        ([apart[0], *apart], True),
        ([reduce(n, 1000, in_msg_size=n + 1) for n in range(3)] + [reduce(4, 5000)], False),
        ([reduce(n, 1000) for n in range(3)] + [reduce(4, 5000)], False),
        ([reduce(n, 0, 5000) for n in range(3)], False),
        ([apart[0], apart[0] | {"dtype": "int"}, *apart[1:]], False),
    )
    for number, (rows, is_doubled) in enumerate(cases):
        made = read_calls(traces(tmp_path / str(number), rows, rows), "param")
        assert unfit(made.calls).count(again) == is_doubled, number
        assert is_doubled or not unfit(made.calls), number


def test_a_message_of_another_rank_is_said_by_import_and_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of two ranks that were taken for each other turned a message round, and a replay ended in KeyError."""
    ends = {"src_rank": 0, "dst_rank": 1, "comms": "send"}
    rows = [reduce(0, 1000, **ends)], [reduce(0, 900, 1100, **ends | {"comms": "recv"})]
    assert unfit(read_calls(traces(tmp_path / "good", *rows), "param").calls) == ""
    files, out = traces(tmp_path / "bad", *rows[::-1]), str(tmp_path / "out")
    assert main(["profile", "import", *map(str, files), "--format", "param", "--out", out]) == 0
    assert "rank 0 has 1 recv that cannot be its own, of messages of ranks 0 → 1" in capsys.readouterr().err
    assert main(["profile", "export", out, "--format", "chakra", "--out", str(tmp_path / "chakra")]) == 0
    assert "These traces do not fit together" in capsys.readouterr().err
    with pytest.raises(StoreError, match="rank 0 has 1 recv"):
        replay(read_profile(tmp_path / "out"), ["shm"])


def test_orders_of_groups_and_tags_are_kept_apart(tmp_path: Path) -> None:
    named = [("a", 512), ("b", 1024)]
    for rank, order in enumerate((named, named[::-1])):
        events = []
        for place, (name, size) in enumerate(order):
            said = {"In msg nelems": size, "Process Group Name": name, "Process Group Ranks": "[0, 1]"}
            events.append(comms("allreduce", 100.0 * place, **said))
        (tmp_path / f"{rank}.json").write_text(json.dumps(kineto(rank, *events)))
    made = read_calls([tmp_path], "kineto")
    assert unfit(made.calls) == ""
    write_calls(made, "chakra", tmp_path / "out")
    assert [call.group for call in read_calls([tmp_path / "out"], "chakra").calls] == ["a", "b", "b", "a"]
    kinds, messages = ["TensorList", "", "Scalar", "Scalar"], [(8, "1"), (24, "2")]
    for rank, order in enumerate((messages, messages[::-1])):
        name = ("c10d::send", "c10d::recv_")[rank]
        events = [operator(name, [[[size]], [], [], []], kinds, ["", "", str(1 - rank), tag]) for size, tag in order]
        events += [operator("gloo:send" if rank == 0 else "gloo:recv", [[size]], ["float"]) for size, _ in order]
        (tmp_path / f"{rank}.json").write_text(json.dumps(kineto(rank, *events)))
    assert unfit(read_calls([tmp_path / f"{rank}.json" for rank in (0, 1)], "kineto").calls) == ""


def test_traces_of_too_few_ranks_or_one_twice_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / f"{rank}.json" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text(json.dumps(kineto(rank, comms("allreduce", 1.0, **{"Process Group Ranks": "[0, 1]"}))))
    assert len(read_calls(files, "kineto").calls) == 2
    with pytest.raises(StoreError, match=r"0\.json: there is no trace of rank 1, "):
        read_calls(files[:1], "kineto")
    with pytest.raises(StoreError, match=r"1\.json: is of rank 1, and so is .*1\.json;"):
        read_calls([*files, files[1]], "kineto")


def test_a_name_that_is_no_text_is_refused(tmp_path) -> None:
    """Writing the profile, or its remark on what was left out, was a traceback."""
    for row in ({"comms": "x\ud800y"}, {"comms": "all_reduce", "markers": ["\ud800"], "global_ranks": [0]}):
        (tmp_path / "rank0.json").write_text(json.dumps([row]))
        with pytest.raises(StoreError, match=r"no trace of param: "):
            read_calls([tmp_path], "param")


def test_groups_of_param_are_those_that_its_trace_has_named_before(tmp_path) -> None:
    """They were taken for the first ranks, and the calls of the others for strange ones."""
    for rank in range(4):
        group = [rank % 2, rank % 2 + 2]
        rows = [
            {"comms": "init", "pg_id": 1, "global_ranks": group},
            {"comms": "all_reduce", "pg_id": 1, "in_msg_size": 4, "out_msg_size": 4, "dtype": "float", "world_size": 2},
        ]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(rows))
    made = read_calls([tmp_path], "param")
    assert [call.ranks for call in made.calls] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert unfit(made.calls) == ""
    rows = [{"comms": "all_reduce", "pg_id": number, "in_msg_size": 4, "dtype": "float", "world_size": 2}
            for number in (1, 2)]  # fmt: skip
    (tmp_path / "rank0.json").write_text(json.dumps(rows))
    with pytest.raises(StoreError, match="all_reduce does not say which ranks are in its process group"):
        read_calls([tmp_path], "param")


@pytest.mark.parametrize("form", ["kineto", "chakra", "param"])
@pytest.mark.parametrize(("start_ns", "took_ns"), [(-5000, 1000), (5000, -1000)])
def test_negative_times_are_refused(tmp_path: Path, form: str, start_ns: int, took_ns: int) -> None:
    """They were taken, and a report then ended in a traceback."""
    attributes = [{"name": "comm_type", "int64Val": 0}, {"name": "comm_size", "int64Val": 4},
                  {"name": "start_ns", "int64Val": start_ns}, {"name": "duration_ns", "int64Val": took_ns}]  # fmt: skip
    found = comms("allreduce", start_ns / 1e3, **{"Process Group Ranks": "[0]"}) | {"dur": took_ns / 1e3}
    trace = {
        "kineto": kineto(0, found | {"cat": "kernel"}),
        "chakra": {"nodes": [{"id": 1, "name": "a", "type": 7, "attr": attributes}]},
        "param": [reduce(0, start_ns, took_ns, global_ranks=[0])],
    }
    (tmp_path / "0.json").write_text(json.dumps(trace[form]))
    with pytest.raises(StoreError, match=r"(Expected .*(>= 0|matching)|ends before it begins)"):
        read_calls([tmp_path / "0.json"], form)


def test_other_files_of_a_folder_are_passed_over_or_named(tmp_path: Path) -> None:
    """A file that says no rank took the place of rank 0, and rank 0 was blamed."""
    traces(tmp_path, [reduce(0, 1000)], [reduce(0, 1000)])
    for name in (".hidden.json", "params.json.bak"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "sub.json").mkdir()
    assert len(read_calls([tmp_path], "param").calls) == 2
    for text, words in (("[]", "neither it nor its name says a rank"), ("", "it is empty")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(StoreError, match=rf"config\.json: no trace of param: {words}"):
            read_calls([tmp_path], "param")


def test_what_is_of_another_format_or_no_whole_number_of_elements_is_refused(tmp_path: Path) -> None:
    for rank, trace in enumerate((kineto(0), [reduce(0, 1, in_msg_size=10.5)])):
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
        with pytest.raises(StoreError, match="Expected `"):
            read_calls([tmp_path / f"{rank}.json"], "param")


def test_times_of_kineto_count_from_each_trace_s_own_base(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = kineto(rank, comms("allreduce", 5000.0 - 2000 * rank, **{"Process Group Ranks": "[0, 1]"}))
        trace["baseTimeNanoseconds"] = 10**18 + 2_000_000 * rank
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    assert {call.enter_ns for call in read_calls([tmp_path], "kineto").calls} == {10**18 + 5_000_000}


def test_nodes_of_chakra_as_its_own_tools_write_them_are_read(tmp_path: Path) -> None:
    attributes = [{"name": "is_cpu_op", "boolVal": False}, {"name": "comm_type", "int64Val": "2"},
                  {"name": "comm_size", "int64Val": "1048576"}]  # fmt: skip
    nodes = [{"id": "1", "name": "mm", "type": "COMP_NODE", "durationMicros": "7"},
             {"id": "2", "name": "gather", "type": 7, "startTimeMicros": "3", "attr": attributes}]  # fmt: skip
    (tmp_path / "trace.3.json").write_text(json.dumps({"nodes": nodes}))
    (call,) = read_calls([tmp_path / "trace.3.json"], "chakra").calls
    assert (call.rank, call.op, call.bytes, call.gap_ns, call.enter_ns, call.exit_ns) == (
        3, "all_gather", 1 << 20, 7_000, 3_000, None,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["kineto", "chakra", "param"])
@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '{"nodes": [{}]}', '{"traceEvents": [{"ph": "X", "args": 3}]}',
                                  '[{"comms": "send", "in_msg_size": "many"}]', "[" * 200_000,
                                  '[{"comms": "all_reduce", "in_msg_size": 1e400, "dtype": "float"}]',
                                  '{"traceEvents": [{"ph": "X", "name": "c10d::barrier", "ts": 1e300, "args": '
                                  '{"Input Dims": [], "Input type": []}}]}'])  # fmt: skip
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, form: str, text: str) -> None:
    (tmp_path / "0.json").write_text(text)
    with pytest.raises(StoreError, match=r"0\.json: (no trace of|holds no communication call)") as caught:
        read_calls([tmp_path / "0.json"], form)
    assert "\n" not in str(caught.value)
    assert "Error" not in str(caught.value)


def chakra_node(**attributes: object) -> dict[str, Any]:
    said = {"comm_type": 0, "comm_size": 4, "pg_ranks": "[0]"} | attributes
    rows = [{"name": key, "stringVal" if key == "pg_ranks" else "int64Val": value} for key, value in said.items()]
    return {"nodes": [{"id": 1, "name": "a", "type": 7, "attr": rows}]}


@pytest.mark.parametrize(
    ("form", "made"),
    [
        *(("chakra", chakra_node(comm_size=value)) for value in (1024.9, True, "1_0")),
        ("chakra", chakra_node(comm_type=0.7)),
        *(("chakra", chakra_node(pg_ranks=value)) for value in ('{"0": 5}', '"0"', "[0.0]")),
        ("chakra", chakra_node(step=1.9)),
        *(("param", [reduce(0, 1, global_ranks=value)]) for value in ("0", {"0": 0}, [0.9])),
        *(("param", [reduce(0, 1, global_ranks=[0], dtype=value)]) for value in ("-1", "int0", "float999")),
        ("param", [reduce(0, 1, global_ranks=[0], step=0.9)]),
        ("kineto", kineto(0.9, comms("allreduce", 1.0, **{"Process Group Ranks": "[0]"}))),  # type: ignore[arg-type]
        ("kineto", kineto(0, comms("allreduce", 1.0, **{"Process Group Ranks": "[0]"}), {"ph": "X", "ts": math.nan})),
        *(
            ("kineto", kineto(0, operator("c10d::allreduce_", [dims], ["float"])))
            for dims in ([9.9], [-4, -4], [True], ["4"], 4)
        ),
        *(
            ("kineto", kineto(0, comms("allreduce", 1.0, **{"Process Group Ranks": "[0]"} | said)))
            for said in (
                {"In msg nelems": True},
                {"Out msg nelems": -1},
                {"In msg nelems": "1_0"},
                {"dtype": "foo16"},
                {"Process Group Ranks": "[0, 0]"},
            )
        ),
        *(
            ("kineto", kineto(0, comms("allreduce", 1.0, **{"Process Group Ranks": "[0]"}) | said))
            for said in ({"ts": True}, {"ts": "1_0"}, {"dur": True}, {"dur": "5"})
        ),
        *(
            ("param", [reduce(0, 1, global_ranks=[0], **said)])
            for said in (
                {"in_msg_size": True},
                {"in_msg_size": -4},
                {"duration_ns": True},
                {"startTime_ns": "5"},
                {"gap_ns": -1},
                {"world_size": -1},
            )
        ),
        ("chakra", {"nodes": [{"type": 7.0}]}),
        *(("chakra", {"nodes": [{"type": 7, "attr": [{"name": name, "int64Val": 1}]}]}) for name in ([], {}, None)),
        ("param", [reduce(0, 1, global_ranks=[0], dtype="\x1b[31mX")]),
        *(
            ("chakra", {"nodes": [{"type": 4, "attr": [{"name": "duration_ns", "int64Val": value}]}]})
            for value in (-5, True, 2.5)
        ),
    ],
    ids=str,
)
def test_a_number_of_another_kind_is_no_number(form: str, made: object, tmp_path: Path) -> None:
    """Each was taken for a whole number, and bytes, ranks or the order of calls were false."""
    (tmp_path / "0.json").write_text(json.dumps(made))
    with pytest.raises(StoreError, match=rf"0\.json: no trace of {form}: ") as caught:
        read_calls([tmp_path / "0.json"], form)
    assert str(caught.value).isprintable()


def test_numbers_may_be_texts_as_protobuf_writes_them(tmp_path: Path) -> None:
    said = {"comm_size": "4", "comm_type": "0", "step": "3", "start_ns": "5000", "duration_ns": "70"}
    (tmp_path / "0.json").write_text(json.dumps(chakra_node(**said)))
    (call,) = read_calls([tmp_path / "0.json"], "chakra").calls
    assert (call.op, call.bytes, call.step, call.enter_ns, call.exit_ns) == ("all_reduce", 4, 3, 5000, 5070)


def test_a_group_of_impossibly_many_ranks_is_refused_at_once(tmp_path: Path) -> None:
    """Its ranks were listed until the memory was full."""
    (tmp_path / "0.json").write_text(json.dumps([reduce(0, 1, global_ranks=[], world_size=10**12)]))
    with pytest.raises(StoreError, match=r"Expected `int` <= 65536 - at .*world_size"):
        read_calls([tmp_path / "0.json"], "param")


def test_a_replay_of_more_ranks_than_a_host_runs_is_refused(tmp_path: Path) -> None:
    ends = Call(0, 0, 0, "send", (0, 65_535), 4, "", ""), Call(65_535, 0, 0, "recv", (0, 65_535), 4, "", "")
    with pytest.raises(ConfigError, match="65,536 ranks"):
        replay(Profile(None, calls=ends), ["shm"])


def test_a_truncated_archive_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "0.json.gz").write_bytes(gzip.compress(b"[]" * 999)[:20])
    with pytest.raises(StoreError, match="no trace of param"):
        read_calls([tmp_path / "0.json.gz"], "param")


def test_formats_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    plan = without_times(built(repetitions=1))
    with pytest.raises(ConfigError, match="did you mean 'chakra'"):
        read_calls([tmp_path], "chakr")
    with pytest.raises(StoreError, match="a plan has no times"):
        write_calls(plan, "chrome", tmp_path / "trace.json")
    with pytest.raises(StoreError, match="has no communication calls"):
        write_calls(built(ranks=1, repetitions=1), "chakra", tmp_path)
    with pytest.raises(StoreError, match=r"none\.json: there is no such file$"):
        read_calls([tmp_path / "none.json"], "param")
    assert isinstance(plan, Profile)


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, before)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    made = built(repetitions=1)
    made = replace(made, calls=tuple(call for call in made.calls if call.rank or not call.sequence))
    with files_of_at_most(20_000), pytest.raises(StoreError, match=r"1\.json: "):  # 0.json is smaller
        write_calls(made, "chakra", tmp_path / "new" / "out")
    with files_of_at_most(100), pytest.raises(StoreError, match="File too large"):
        write_profile(tmp_path / "new", made)
    assert [*tmp_path.iterdir()] == []


def test_a_plan_that_is_exported_is_a_plan_again(tmp_path: Path) -> None:
    write_calls(without_times(built(repetitions=1)), "chakra", tmp_path / "out")
    again = read_calls([tmp_path / "out"], "chakra")
    assert again.is_planned
    assert again.remarks == ("Imported from chakra: 2 files.",)


def test_chrome_has_an_arrow_from_the_last_rank_to_the_other(tmp_path: Path) -> None:
    made = built(repetitions=1, tokens=1, layers=2, slow=(1, 0, 3_000_000))
    (path,) = write_calls(made, "chrome", tmp_path / "trace.json")
    events = json.loads(path.read_bytes())["traceEvents"]
    begins, ends = ({e["id"]: e for e in events if e["ph"] == kind} for kind in "sf")
    assert begins.keys() == ends.keys()
    assert len(begins) == len(made.calls) / 2
    assert all(begins[key]["ts"] < ends[key]["ts"] and begins[key]["pid"] != ends[key]["pid"] for key in begins)
    assert {event["name"] for event in events if event["ph"] == "X"} >= {"prefill", "layers.0.mlp", "all_reduce"}


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere")], ids=["fifo", "link"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "there")
    with pytest.raises(StoreError, match="a link, a device or the like; name a new file"):
        write_calls(built(ranks=1, repetitions=1), "chrome", tmp_path / "there")
    assert not (tmp_path / "there").is_file()
