"""A page in a browser, with its console messages and its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Seen:
    """A page in a browser, with its console messages and its requests."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, path: Path) -> None:
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def card(self, key: str) -> Any:
        """Return a plot's card, drawn."""
        card = self.page.locator(f"#plot-{key}")
        card.scroll_into_view_if_needed()
        card.locator(".main-svg").first.wait_for()
        return card
