"""The JSON document of a command: every one says what it is, and in which version. docs/json.md has their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

VERSIONS: Mapping[str, int] = {
    "backends": 2,
    "comparison": 1,
    "conformance": 2,
    "diagnosis": 1,
    "doctor": 1,
    "endpoint": 1,
    "ladder": 1,
    "leftovers": 1,
    "links": 1,
    "pattern recommendation": 1,
    "profile": 1,
    "profile analysis": 1,
    "profile communication": 1,
    "recommendation": 1,
    "replay": 2,
    "requests": 1,
    "self-test": 2,
    "tables": 1,
    "trace diff": 1,
    "trace path": 1,
    "trace report": 3,
}
"""Kind → version, which rises when a field goes or changes its meaning; a new field leaves it."""


def head(kind: str) -> dict[str, Any]:
    """Return the first fields of a document."""
    return {"format": f"ipcbench {kind}", "version": VERSIONS[kind]}


def document(kind: str, fields: Mapping[str, Any]) -> str:
    """Return a document as text; half a surrogate pair, which no text can hold, becomes a question mark."""
    values = {**head(kind), **fields}
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False).encode(errors="replace").decode() + "\n"
