"""The JSON Schemas of the commands' documents (docs/schemas): read, walked, and shown as tables of fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ipcbench.render.document import VERSIONS

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
Schema = Mapping[str, Any]


def schema_of(kind: str) -> Schema:
    """Return the schema of a kind of document."""
    schema: Schema = json.loads((FOLDER / f"{kind.replace(' ', '-')}.json").read_text(encoding="utf-8"))
    return schema


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield path → schema of every field, not of those that a reference leads to: `cells[].rank`, `skipped.*`."""
    for name, part in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, part
        yield from fields(part, here)
    for key, ending in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(key), Mapping):
            yield from fields(schema[key], path + ending)


def part_fields(schema: Schema) -> dict[str, Schema]:
    """Return path → schema of every field of the definitions of a schema: `interval.low`."""
    definitions = schema.get("$defs", {})
    return {path: part for name, one in definitions.items() for path, part in fields(one, name)}


def fields_table(kind: str) -> str:
    """Return the fields of a kind of document as Markdown."""
    return _table(dict(fields(schema_of(kind))))


def parts_table() -> str:
    """Return the definitions that fields share as Markdown; those of one name are equal, as a test shows."""
    rows: dict[str, Schema] = {}
    for schema in map(schema_of, VERSIONS):
        for name, one in schema.get("$defs", {}).items():
            rows |= {name: one, **dict(fields(one, name))}
    return _table(rows)


def _table(rows: Mapping[str, Schema]) -> str:
    lines = ["| field | type | meaning |", "|---|---|---|"]
    lines += [f"| `{path}` | {_type_words(part)} | {part['description']} |" for path, part in rows.items()]
    return "\n".join(lines)


def _type_words(schema: Schema) -> str:
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_type_words, schema["anyOf"]))
    if "$ref" in schema:
        link = f"[{schema['$ref'].rpartition('/')[2]}](#parts)"
        return f"{link} and these" if "properties" in schema else link
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(_container_words(schema) if kind in {"array", "object"} else kind for kind in kinds)


def _container_words(schema: Schema) -> str:
    items = schema.get("items", schema.get("additionalProperties"))
    noun = "array" if "items" in schema else "object"
    if schema.get("maxProperties") == 0:
        return "empty object"
    if not isinstance(items, Mapping) or "properties" in items:
        return f"{noun} of objects" if isinstance(items, Mapping) else noun
    plain = isinstance(items.get("type"), str) and "enum" not in items
    return f"{noun} of {_type_words(items)}{'s' if plain else ''}"
