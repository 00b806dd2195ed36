"""HTML pages that are one file: they open offline, fetch nothing and execute nothing from data."""

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
    """A fact in a few words at the head of a page."""

    text: str
    tone: Literal["good", "plain", "warn", "bad"]
    target: str
    """Id of the section that says more."""


def render_page(template: str, groups: Sequence[ChartGroup], **values: Any) -> str:
    """Return a page: a template with its charts, the style, and the scripts with a policy that allows no others.

    Args:
        template: Jinja source; all values are escaped. It extends page.html.j2 and may use other files of assets/.
        groups: charts; the template gets them too.
        values: everything else that the templates need.

    Raises:
        ImportError: jinja2 is not installed.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [_asset(name) for name in _SCRIPTS]
    page = environment.from_string(template).render(
        policy=_policy(scripts),
        style=Markup(_asset("report.css")),  # noqa: S704 # our own file, as are the scripts
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        charts=Markup(groups_json(groups)),  # noqa: S704 # JSON without a single `<`
        groups=groups,
        **values,
    )
    return page.lstrip().encode(errors="replace").decode()  # a lone surrogate in a name cannot be encoded


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that runs only these scripts and fetches nothing."""
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
