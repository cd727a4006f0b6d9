"""Every page of docs/ by its name, as HTML, with what a reader searches: titles and headings."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from app.api.documents import markdown
from app.api.documents.markdown import Heading, Target

ROOT = "/docs"
API_REFERENCE = f"{ROOT}/api"
_INDEX = "README"
_OUTSIDE = ("http://", "https://", "mailto:")


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
    """All pages under a directory; each is rendered once, when the first of them is wanted."""

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
        """The side list: the sections of the index, pages of a folder after the folder's own."""
        found = []
        for title, addresses in self._index_sections():
            own = [self._pages[each] for each in addresses if each in self._pages]
            pages = (one for page in own for one in (page, *self._inside(page)))
            found.append(Group(title, tuple(dict.fromkeys(pages))))
        return tuple(group for group in found if group.pages)

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
        parsed = {name: markdown.parsed(self.source(name)) for name in names}
        headings = {name: tuple(markdown.headings(tokens)) for name, tokens in parsed.items()}
        titles = {_address(name): _title(name, found) for name, found in headings.items()}

        def page(name: str) -> Page:
            html = markdown.rendered(parsed[name], lambda link: _target(link, name, titles))
            address = _address(name)
            return Page(address, titles[address], headings[name], html)

        return {_address(name): page(name) for name in names}

    def _index_sections(self) -> Iterator[tuple[str, list[str]]]:
        title, addresses = "", list[str]()
        tokens = markdown.parsed(self.source(_INDEX))
        for before, token in pairwise(tokens):
            if token.type != "inline":
                continue
            if before.type == "heading_open":
                yield title, addresses
                title, addresses = markdown.plain_text(token.children), []
            links = [each for each in token.children or () if each.type == "link_open"]
            addresses += [_address_in(str(each.attrGet("href")), _INDEX) for each in links]
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


def _title(name: str, headings: tuple[Heading, ...]) -> str:
    return headings[0].text if headings else name


def _target(link: str, name: str, titles: Mapping[str, str]) -> Target | None:
    if link.startswith((*_OUTSIDE, "#")):
        return Target(link)
    file, _, anchor = link.partition("#")
    address = _address_in(file, name)
    if address not in titles:
        return None
    return Target(f"{address}#{anchor}" if anchor else address, titles[address])
