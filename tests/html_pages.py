"""A parser of the html pages that harken writes."""

from __future__ import annotations

from html.parser import HTMLParser


class Parsed(HTMLParser):
    """Elements, texts by the name of their element, and comments of a page."""

    VOID = ("meta", "input")

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.comments: list[str] = []
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert tag in self.VOID or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """All text but that of style and script."""
        return "".join(
            text for tag, texts in self.texts.items() if tag not in ("style", "script") for text in texts
        )
