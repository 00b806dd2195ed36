"""One page of one file: opens offline, fetches nothing, executes nothing from data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from ipcbench.render.charts import ChartGroup
from ipcbench.render.page_data import groups_json

_ASSETS = files("ipcbench.render") / "assets"
_SCRIPTS = ("plotly-basic.min.js", "report.js")


@dataclass(frozen=True, slots=True)
class Badge:
    """One fact in a few words at the head of a page."""

    text: str
    tone: Literal["good", "plain", "warn", "bad"]
    target: str
    """Id of the section that says more."""


def render_page(template: str, groups: Sequence[ChartGroup], **values: Any) -> str:
    """Return a page of one file: a template with its charts, the style, the scripts and a policy that lets in no other.

    Args:
        template: in which all values are escaped; it may include other files of assets/.
        groups: of charts, in the template too.
        values: what the template needs besides.

    Raises:
        ImportError: there is no jinja2.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [_asset(name) for name in _SCRIPTS]
    page = environment.from_string(template).render(
        policy=_policy(scripts),
        style=Markup(_asset("report.css")),  # noqa: S704 # ours, as are the scripts
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        charts=Markup(groups_json(groups)),  # noqa: S704 # JSON without a single `<`
        groups=groups,
        **values,
    )
    return page.lstrip().encode(errors="replace").decode()  # half a surrogate pair in a name cannot be written


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy under which only these scripts run and nothing is fetched."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    rules = {
        "default-src": "'none'",
        "script-src": hashes,
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
