"""What a GPU moves: its processes' functions with fakes of CUDA; without any, what it takes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from ipcbench.errors import TransportError  # noqa: E402
from ipcbench.harness.worker import Worker  # noqa: E402
from ipcbench.profile.files.sweeps import grade, sweep_lines  # noqa: E402
from ipcbench.profile.records import SweepPoint  # noqa: E402
from ipcbench.profile.sweep import copies, device  # noqa: E402
from ipcbench.profile.sweep.cases import Budget  # noqa: E402
from tests.profile.timing.test_spans import _Event  # noqa: E402

GPU = {"name": "GPU", "free_bytes": 2**30, "l2_bytes": 2**18, "peak_bytes_per_s": 4 * 10**12, "link": "NV18",
       "link_bytes_per_s": 450 * 10**9}  # fmt: skip
WORKER = Worker(0)


class _Timed(_Event):
    def synchronize(self) -> None:
        """It has ended."""


class _Group:
    """Answers as the GPU's processes would, by the same functions, with buffers on the host."""

    def __init__(self, gpus: list[dict[str, Any]]) -> None:
        self.gpus = gpus

    def ask_one(self, _: int, question: dict[str, Any], __: float) -> dict[str, Any]:
        name = question["function"].rpartition(":")[2]
        if name == "describe":
            return {"gpus": self.gpus}
        question = {**question, "devices": ["cpu", "cpu"], "device": "cpu"}
        answer: dict[str, Any] = getattr(copies, name)(WORKER, question)
        return answer


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's events, memory shared within this process, and `pin_memory` without a GPU."""
    shared: dict[int, Any] = {}

    def share(storage: Any) -> list[Any]:
        shared[0] = storage
        return [0, b"handle"]

    full = torch.full

    def unpinned(*args: Any, pin_memory: bool, **rest: Any) -> Any:
        return full(*args, **rest)

    monkeypatch.setattr(torch, "full", unpinned)
    monkeypatch.setattr(torch.cuda, "Event", _Timed)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", share)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", lambda index, _: shared[index], raising=False)


def _cases(monkeypatch: pytest.MonkeyPatch, gpus: list[dict[str, Any]], sizes: tuple[int, ...]) -> list[SweepPoint]:
    class Processes(_Group):
        def __enter__(self) -> tuple[_Group, dict[str, Any]]:
            return self, {}

        def __exit__(self, *_: object) -> None:
            """None was started."""

    monkeypatch.setattr(device, "driver", lambda: True)
    monkeypatch.setattr(device, "workers", lambda *_, **__: Processes(gpus))
    return list(device.device_cases(sizes, Budget(None)))


@pytest.mark.usefixtures("cuda")
def test_each_copy_is_measured_and_graded_against_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _cases(monkeypatch, [GPU, GPU], (2**19, 2**20))
    assert [point.status for point in found] == ["measured"] * 14
    assert {str(point.values["what"]) for point in found} == {*device.CASES} - {device.NVLINK}
    small, large = (point for point in found if point.values["what"] == device.WITHIN)
    assert "peak_ratio" not in small.figures  # it is in the cache
    assert large.figures["bytes_per_s"].estimate == pytest.approx(2 * 2**20 * 1e9 / large.figures["time_ns"].estimate)
    assert large.figures["peak_ratio"].estimate == pytest.approx(large.figures["bytes_per_s"].estimate / 4e12)
    assert grade(large) == "poor"
    assert found[-1].values["link"] == "NV18"
    said = " ".join(sweep_lines(found))
    assert "of the device's peak: poor" in said
    assert "1500 GB/s" in said.replace(",", "")


@pytest.mark.usefixtures("cuda")
def test_what_one_gpu_cannot_have_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _cases(monkeypatch, [{**GPU, "link": "", "free_bytes": 2**21, "peak_bytes_per_s": None}], (2**19, 2**20))
    assert [point.reason for point in found[:2]] == ["needs 2 GPUs", "needs 2 GPUs with NVLink"]
    assert {point.status for point in found[2:8]} == {"measured"}
    assert {point.status for point in found[8:]} == {"not measured"}
    assert "peak not known" in " ".join(sweep_lines(found))


@pytest.mark.usefixtures("cuda")
def test_bytes_that_did_not_come_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_timed", lambda once: [1.0])
    with pytest.raises(TransportError, match="not those that were sent"):
        copies.copy(WORKER, {"what": device.WITHIN, "bytes": 64, "devices": ["cpu", "cpu"]})
    shared = copies.share(WORKER, {"bytes": 2**20, "device": "cpu"})
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    with pytest.raises(TransportError, match="not those that were sent"):
        copies.take(WORKER, shared)


def test_without_a_gpu_each_case_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver", lambda: None)
    found = list(device.device_cases((2**20,), Budget(None)))
    assert {point.status for point in found} == {"unavailable"}
    assert len(found) == len(device.CASES)
    assert _cases(monkeypatch, [], (2**20,)) == found


def test_the_links_of_two_gpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"topo": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-15\nGPU1\tNV18\t X \t0-15\n",
            "nvlink": "GPU 0: NVIDIA H100\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"}  # fmt: skip
    monkeypatch.setattr(copies, "_nvidia_smi", lambda what, *_: said[what])
    assert copies._link() == ("NV18", 53_124_000_000)
    monkeypatch.setattr(copies, "_nvidia_smi", lambda *_: "")
    assert copies._link() == ("", None)
