"""Every page of docs/ by its name, as HTML, and the titles and headings for the search.

Of Markdown, no raw HTML is taken; each heading has an anchor; links are the service's own.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = "/docs"
API_REFERENCE = f"{ROOT}/api"
_INDEX = "README"
_OUTSIDE = ("http://", "https://", "mailto:")
_TABLE_FRAME = '<div class="table-frame" tabindex="0" role="group" aria-label="Table">'
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a link leads in the service, and the title of that page; "" if it is no page."""

    address: str
    title: str = ""


# Gives the target of a link in a page; None where the service does not have it.
LinkTarget = Callable[[str], Target | None]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its level (1 to 6), its text and the anchor it has in the page."""

    level: int
    text: str
    anchor: str


def parsed(source: str) -> list[Token]:
    """The tokens of a page; HTML in it is text like any other."""
    return _markdown().parse(source)


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def plain_text(tokens: Sequence[Token] | None) -> str:
    """The text of inline tokens, without marks."""
    return "".join(
        " " if token.type == "softbreak" else token.content
        for token in tokens or ()
        if token.type in ("text", "code_inline", "softbreak")
    )


def headings(tokens: Sequence[Token]) -> list[Heading]:
    """All headings in order, with anchors as GitHub makes them: a second equal one gets "-1"."""
    in_order: list[Heading] = []
    used = Counter[str]()
    for opening, inline in _heading_tokens(tokens):
        text = plain_text(inline.children)
        anchor = _NOT_IN_ANCHORS.sub("", text.lower()).replace(" ", "-")
        own = f"{anchor}-{used[anchor]}" if used[anchor] else anchor
        used[anchor] += 1
        in_order.append(Heading(int(opening.tag[1:]), text, own))
    return in_order


def rendered(tokens: list[Token], find: LinkTarget) -> str:
    """The page as HTML; a link without a target is plain text."""
    for (opening, _), heading in zip(_heading_tokens(tokens), headings(tokens), strict=True):
        opening.attrSet("id", heading.anchor)
    for token in tokens:
        if token.children:
            token.children = [*_linked(token.children, find)]
    markdown = _markdown()
    # Wide tables and code scroll in frames of their own, which the keyboard has to reach.
    markdown.add_render_rule("table_open", lambda *_: f"{_TABLE_FRAME}<table>\n")
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
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


def _code_block(_renderer: object, tokens: Sequence[Token], at: int, *_: object) -> str:
    return f'<pre tabindex="0"><code>{escape(tokens[at].content)}</code></pre>\n'


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its address, its title and headings, and its body as HTML."""

    address: str
    title: str
    headings: tuple[Heading, ...]
    html: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pages of the side list under one title, in their order."""

    title: str
    pages: tuple[Page, ...]


class Library:
    """All pages under a directory; rendered once, when the first of them is requested."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def page(self, name: str) -> Page | None:
        """The page of a name such as "on-call" or "feeds/torch"; "" is the index."""
        return self._pages.get(f"{ROOT}/{name}".rstrip("/"))

    def source(self, name: str) -> str:
        """The Markdown of a page."""
        return (self._directory / f"{name}.md").read_text("utf-8")

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The side list: sections of the index; pages of a folder follow the folder's own page."""
        groups = []
        for title, addresses in self._index_sections():
            own = [self._pages[address] for address in addresses if address in self._pages]
            pages = (one for page in own for one in (page, *self._inside(page)))
            groups.append(Group(title, tuple(dict.fromkeys(pages))))
        return tuple(group for group in groups if group.pages)

    def titles(self) -> list[dict[str, str]]:
        """Titles and headings with their addresses, for the search: `title`, `page`, `href`."""
        return [
            {
                "title": heading.text,
                "page": page.title,
                "href": page.address if heading.level == 1 else f"{page.address}#{heading.anchor}",
            }
            for page in self._pages.values()
            for heading in page.headings
        ]

    @cached_property
    def _pages(self) -> Mapping[str, Page]:
        paths = sorted(self._directory.rglob("*.md"))
        names = [path.relative_to(self._directory).with_suffix("").as_posix() for path in paths]
        tokens = {name: parsed(self.source(name)) for name in names}
        by_page = {name: tuple(headings(tokens[name])) for name in names}
        titles = {
            _address(name): by_page[name][0].text if by_page[name] else name for name in names
        }

        def page(name: str) -> Page:
            html = rendered(tokens[name], lambda link: _target(link, name, titles))
            address = _address(name)
            return Page(address, titles[address], by_page[name], html)

        return {_address(name): page(name) for name in names}

    def _index_sections(self) -> Iterator[tuple[str, list[str]]]:
        title, addresses = "", list[str]()
        tokens = parsed(self.source(_INDEX))
        for before, token in pairwise(tokens):
            if token.type != "inline":
                continue
            if before.type == "heading_open":
                yield title, addresses
                title, addresses = plain_text(token.children), []
            links = [inner for inner in token.children or () if inner.type == "link_open"]
            addresses += [_address_in(str(link.attrGet("href")), _INDEX) for link in links]
        yield title, addresses

    def _inside(self, folder: Page) -> list[Page]:
        prefix = f"{folder.address}/"
        return [page for address, page in self._pages.items() if address.startswith(prefix)]


def _address(name: str) -> str:
    return f"{ROOT}/{name}".removesuffix(f"/{_INDEX}")


def _address_in(link: str, name: str) -> str:
    """The address of a file that the page `name` links to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
    return _address(path.removesuffix(".md"))


def _target(link: str, name: str, titles: Mapping[str, str]) -> Target | None:
    if link.startswith((*_OUTSIDE, "#")):
        return Target(link)
    file, _, anchor = link.partition("#")
    address = _address_in(file, name)
    if address not in titles:
        return None
    return Target(f"{address}#{anchor}" if anchor else address, titles[address])
