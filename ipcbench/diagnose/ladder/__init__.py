"""The ladder: what each step of a roadmap brings for the traffic of a model's forward pass, measured here.

A client has tensors; a server has the linear layers and multiplies matrices. Each stage moves the tensors of their
calls in another way. `stages` says how, and what they are; `scale`, how much of it fits a budget; `links` carry them,
`side` is what the processes do, `measure` the rounds, `result` what came of them.
"""

from __future__ import annotations

from ipcbench.diagnose.ladder.measure import measure_ladder
from ipcbench.diagnose.ladder.result import (
    Gain,
    LadderResult,
    StageResult,
    ladder_chart,
    ladder_fields,
    ladder_table,
)
from ipcbench.diagnose.ladder.stages import STAGES, Stage

__all__ = [
    "STAGES",
    "Gain",
    "LadderResult",
    "Stage",
    "StageResult",
    "ladder_chart",
    "ladder_fields",
    "ladder_table",
    "measure_ladder",
]
