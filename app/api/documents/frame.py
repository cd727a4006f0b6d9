"""What stands around a page of the documentation: the app's bar, the list of pages, styles."""

from collections.abc import Sequence
from html import escape

from app.api.documents.library import API_REFERENCE, Group, Page

_STYLES = (
    "tokens.css",
    "base.css",
    "components/top-bar.css",
    "components/buttons.css",
    "components/state-icon.css",
    "pages/docs.css",
)
_API_TITLE = "API reference"
_MAX_SECTIONS = 24  # of the page itself in the side list; a longer one lists its chapters only

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · Paceline</title>
<link rel="icon" type="image/svg+xml" href="/static/favicon.svg">
<link rel="preload" href="/static/fonts/inter-latin.woff2" as="font" type="font/woff2" crossorigin>
{styles}
<script src="/static/js/theme-at-start.js"></script>
<script type="module" src="/static/js/docs.js"></script>
</head>
<body>
<a class="skip" href="#page">Skip to the page</a>
<header id="top-bar" class="top-bar"><noscript><a href="/">Paceline</a></noscript></header>
<main id="page" class="page docs" tabindex="-1">
<nav class="docs-pages" aria-label="Documentation">
<div id="docs-search"></div>
{pages}
</nav>
<article>
{body}
</article>
</main>
<div id="announcer" class="unseen" role="status" aria-live="polite"></div>
</body>
</html>
"""


def document(page: Page, groups: Sequence[Group]) -> str:
    """A page within the frame."""
    return _framed(page.title, page.html, _side_list(groups, page.address, _sections(page)))


def api_document(body: str, sections: Sequence[str], groups: Sequence[Group]) -> str:
    """The API reference within the frame; `sections` are the anchors of its chapters."""
    own = "".join(f'<li><a href="#{escape(each)}">{escape(each)}</a></li>' for each in sections)
    return _framed(_API_TITLE, body, _side_list(groups, API_REFERENCE, own))


def missing_document(name: str, groups: Sequence[Group]) -> str:
    """In place of a page that does not exist."""
    body = f"<h1>No such page</h1><p>The documentation has no page {escape(name)}.</p>"
    return _framed("No such page", body, _side_list(groups, "", ""))


def _framed(title: str, body: str, pages: str) -> str:
    styles = "\n".join(f'<link rel="stylesheet" href="/static/css/{name}">' for name in _STYLES)
    return _DOCUMENT.format(title=escape(title), styles=styles, pages=pages, body=body)


def _side_list(groups: Sequence[Group], here: str, sections: str) -> str:
    parts = []
    for group in groups:
        links = [_link(page.address, page.title, here, sections) for page in group.pages]
        parts.append(f"<h2>{escape(group.title)}</h2><ul>{''.join(links)}</ul>")
    link = _link(API_REFERENCE, _API_TITLE, here, sections)
    return "".join([*parts, f"<h2>API</h2><ul>{link}</ul>"])


def _link(address: str, title: str, here: str, sections: str) -> str:
    if address != here:
        return f'<li><a href="{escape(address)}">{escape(title)}</a></li>'
    inner = f"<ul>{sections}</ul>" if sections else ""
    return f'<li><a href="{escape(address)}" aria-current="page">{escape(title)}</a>{inner}</li>'


def _sections(page: Page) -> str:
    inner = [heading for heading in page.headings if heading.level in (2, 3)]
    if len(inner) > _MAX_SECTIONS:
        inner = [heading for heading in inner if heading.level == 2]
    return "".join(
        f'<li class="is-level-{heading.level}"><a href="#{escape(heading.anchor)}">'
        f"{escape(heading.text)}</a></li>"
        for heading in inner
    )
