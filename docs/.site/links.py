"""A hook of mkdocs: a link that leads out of docs/ becomes plain text, since what it leads to is not on the site."""

import re

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page as the site has it."""
    return _OUTSIDE.sub(r"\1", markdown)
