"""HTML pages that are one file: they open offline, fetch nothing and execute nothing from data."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from ipcbench.render.charts import ChartGroup
from ipcbench.render.page_data import groups_json
from ipcbench.render.table import Table

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_INTERVAL = re.compile(r"(\d[\d.,]*(?: [^\s\[]{1,2})? )(\[\d[^\[\]]{0,40}\])")
_SENTENCE_END = re.compile(r"(?<=\.) |(?<=。)")
_ASSETS = files("ipcbench.render") / "assets"
_SCRIPTS = ("plotly-basic.min.js", "page.js", "report.js")


@dataclass(frozen=True, slots=True)
class Badge:
    """A fact in a few words at the head of a page."""

    text: str
    tone: Literal["good", "plain", "warn", "bad"]
    target: str
    """Id of the section that says more."""


@dataclass(frozen=True, slots=True)
class Headline:
    """What a page says first."""

    sentence: str
    remarks: tuple[str, ...] = ()
    """What belongs to it, in smaller letters."""

    @property
    def lead(self) -> str:
        """The first sentence, which is set in large letters."""
        return _SENTENCE_END.split(self.sentence, 1)[0]

    @property
    def rest(self) -> str:
        """The other sentences; may be empty."""
        return self.sentence.removeprefix(self.lead).strip()


def render_page(template: str, headlines: Sequence[Headline], groups: Sequence[ChartGroup], **values: Any) -> str:
    """Return a page: a template with its charts, the style, and the scripts with a policy that allows no others.

    Args:
        template: Jinja source; all values are escaped. It extends page.html.j2 and may use other files of assets/.
        headlines: the first is the heading of the page.
        groups: charts; the first stands beside the headlines, and the template gets all of them.
        values: everything else that the templates need.

    Raises:
        ImportError: jinja2 is not installed.
    """
    from markupsafe import Markup

    scripts = [_asset(name) for name in _SCRIPTS]
    page = (
        _environment()
        .from_string(template)
        .render(
            policy=_policy(scripts),
            style=Markup(_asset("report.css")),  # noqa: S704 # our own file, as are the scripts
            scripts=[Markup(script) for script in scripts],  # noqa: S704
            charts=Markup(groups_json(groups)),  # noqa: S704 # JSON without a single `<`
            headlines=headlines,
            groups=groups,
            **values,
        )
    )
    return page.lstrip().encode(errors="replace").decode()  # a lone surrogate in a name cannot be encoded


def fragment_html(headline: str, tables: Iterable[Table], lists: Iterable[tuple[str, Sequence[str]]]) -> str | None:
    """Return a part of a page for a notebook: a headline, tables, and titled lists; None without jinja2.

    It has neither script nor style sheet: the notebook brings its own.
    """
    try:
        template = _environment().get_template("fragment.html.j2")
    except ImportError:
        return None  # the notebook then shows the text
    html = template.render(headline=headline, tables=list(tables), lists=[(title, list(ls)) for title, ls in lists])
    return html.encode(errors="replace").decode()


def _environment() -> Environment:
    """Return how templates are read, or raise ImportError: jinja2 is not installed."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["intervals"] = _intervals
    return environment


def _intervals(text: str) -> Markup:
    """Return a text in which a figure and its interval stay on one line, the interval in smaller letters."""
    from markupsafe import Markup, escape

    shown = Markup('<span class="kept">{}<span>{}</span></span>')
    parts = iter(_INTERVAL.split(text))
    return Markup("").join(
        [escape(next(parts)), *(shown.format(figure, next(parts)) + next(parts) for figure in parts)]
    )


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
