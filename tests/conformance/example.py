"""A package as `pip install` leaves it: its modules, and the metadata that its pyproject.toml asks for."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def install(package: Path, folder: Path) -> Path:
    """Put a package's modules and its entry points into `folder`, as an installer would, and return the folder."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    for module in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        shutil.copy(package / module, folder / module)
    metadata = folder / f"{project['project']['name'].replace('-', '_')}-{project['project']['version']}.dist-info"
    metadata.mkdir()
    head = {"Metadata-Version": "2.1", "Name": project["project"]["name"], "Version": project["project"]["version"]}
    (metadata / "METADATA").write_text("".join(f"{key}: {value}\n" for key, value in head.items()), encoding="utf-8")
    lines = []
    for group, points in project["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
