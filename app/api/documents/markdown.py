"""Markdown to HTML: no raw HTML, an anchor at each heading, links as the service's own."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from markdown_it import MarkdownIt
from markdown_it.token import Token

_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a link leads in the service, and the title of that page; "" if it is no page."""

    address: str
    title: str = ""


# Of the link in a page; None where the service does not have what it names.
LinkTarget = Callable[[str], Target | None]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its level (1 to 6), its text and the anchor it has in the page."""

    level: int
    text: str
    anchor: str


def parsed(source: str) -> list[Token]:
    """The tokens of a page; HTML in it is text like any other."""
    return MarkdownIt("commonmark", {"html": False}).enable("table").parse(source)


def plain_text(tokens: Sequence[Token] | None) -> str:
    """The text of inline tokens, without marks."""
    return "".join(
        " " if token.type == "softbreak" else token.content
        for token in tokens or ()
        if token.type in ("text", "code_inline", "softbreak")
    )


def headings(tokens: Sequence[Token]) -> list[Heading]:
    """All headings in order, with anchors as GitHub makes them: a second equal one gets "-1"."""
    found: list[Heading] = []
    seen: dict[str, int] = {}
    for opening, inline in _heading_tokens(tokens):
        text = plain_text(inline.children)
        anchor = _NOT_IN_ANCHORS.sub("", text.lower()).replace(" ", "-")
        number = seen[anchor] = seen.get(anchor, -1) + 1
        own = f"{anchor}-{number}" if number else anchor
        found.append(Heading(int(opening.tag[1:]), text, own))
    return found


def rendered(tokens: list[Token], find: LinkTarget) -> str:
    """The page as HTML; a link without a target is plain text."""
    for (opening, _), heading in zip(_heading_tokens(tokens), headings(tokens), strict=True):
        opening.attrSet("id", heading.anchor)
    for token in tokens:
        if token.children:
            token.children = [*_linked(token.children, find)]
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    # Wide tables and code scroll in frames of their own, which the keyboard has to reach.
    markdown.add_render_rule("table_open", _open_table)
    markdown.add_render_rule("table_close", _close_table)
    markdown.add_render_rule("fence", _code_block)
    markdown.add_render_rule("code_block", _code_block)
    html: str = markdown.renderer.render(tokens, markdown.options, {})
    return html


def _heading_tokens(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            yield token, tokens[at + 1]


def _linked(tokens: Sequence[Token], find: LinkTarget) -> Iterator[Token]:
    target: Target | None = None
    is_link = False
    for token in tokens:
        if token.type == "link_open":
            is_link, target = True, find(str(token.attrGet("href") or ""))
            if target is not None:
                token.attrSet("href", target.address)
        elif is_link and token.content.endswith(".md") and target is not None and target.title:
            token.content = target.title  # a file's name says little to a reader of the service
        if target is not None or token.type not in ("link_open", "link_close"):
            yield token
        is_link = is_link and token.type != "link_close"


def _open_table(*_: object) -> str:
    return '<div class="table-frame" tabindex="0" role="group" aria-label="Table"><table>\n'


def _close_table(*_: object) -> str:
    return "</table></div>\n"


def _code_block(_renderer: object, tokens: Sequence[Token], at: int, *_: object) -> str:
    return f'<pre tabindex="0"><code>{escape(tokens[at].content)}</code></pre>\n'
