"""Shapes of a model from its config.json: what its layers multiply, how much that is, how many parameters it has.

- `config`: the facts of a config.json, and those of common models by name
- `shapes`: the operations of a forward pass
"""

from __future__ import annotations

from ipcbench.models.config import PRESETS, Model, read_model
from ipcbench.models.shapes import Operation, operations, parameters_count

__all__ = ["PRESETS", "Model", "Operation", "operations", "parameters_count", "read_model"]
