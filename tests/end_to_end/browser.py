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

    def check_card(self, key: str, marks: str, at_least: int) -> Any:
        """Return a plot's card, which has so many marks, a label and titles of both axes."""
        card = self.card(key)
        assert card.locator(marks).count() >= at_least, key
        assert card.locator(".plot").get_attribute("aria-label")
        assert card.locator(".xtitle").text_content(), key
        assert card.locator(".ytitle").text_content(), key
        return card

    def check_choice(self, key: str) -> Any:
        """Return a plot's card after requiring that another setting makes another plot."""
        card = self.card(key)
        before = card.locator(".plot").get_attribute("aria-label")
        card.locator("select").select_option(index=1)
        assert card.locator(".plot").get_attribute("aria-label") != before
        return card

    def point_at(self, mark: Any) -> None:
        box = mark.bounding_box()
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def check_quiet(self, path: Path, width: int) -> None:
        """Require that nothing sticks out, was asked for, said or executed (which would have changed the title)."""
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        assert "owned" not in self.page.title(), "nothing in the data was executed"
        assert self.said == []
        assert self.asked == [path.as_uri()]
