"""Spans of the layers that a vLLM worker runs. `VERIFIED_ON` is None: nobody has run this under vLLM yet.

    vllm serve MODEL --enforce-eager --worker-extension-cls plugin.ProfiledWorker
    llm.collective_rpc("start_spans"); llm.generate(…); llm.collective_rpc("stop_spans", args=("FOLDER",))

Then `ipcbench profile report FOLDER/rank-0` reads what a worker wrote. Eager mode is needed: a graph that was captured
does not call `forward`. A step begins where the root does, so prefill and decoding are not told apart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

VERIFIED_ON = None


class ProfiledWorker:
    """Methods that vLLM adds to its worker, which has `model_runner`, `rank` and `device`."""

    model_runner: Any
    rank: int
    device: Any

    def start_spans(self) -> None:
        """Begin to take spans."""
        from ipcbench.profile.timing.spans import Spans

        self._spans = Spans(self.model_runner.model, "block", self.device, self.rank).__enter__()

    def stop_spans(self, folder: str) -> None:
        """Write a profile of all forward passes since, each of which is a step."""
        from dataclasses import replace

        import msgspec

        from ipcbench.profile.records import Profile, Setting, Step, write_profile

        self._spans.__exit__(None, None, None)
        steps, spans = [], []
        for span in self._spans.taken():
            spans.append(msgspec.structs.replace(span, step=len(steps)))
            if span.kind == "root":  # it ends after all that are in it
                number = len(steps)
                steps.append(Step(self.rank, number, "prefill", 0, "spans", span.start_ns, span.duration_ns))
        made = Profile(Setting(model="vllm", phases=("prefill",)), steps=tuple(steps), spans=tuple(spans))
        remark = "steps of a vLLM worker: prefill and decoding are not told apart"
        write_profile(Path(folder) / f"rank-{self.rank}", replace(made, remarks=(remark,), verified_on=VERIFIED_ON))
