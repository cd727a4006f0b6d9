"""API reference: one plain page without scripts, rendered from the OpenAPI document."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from app.errors import PacelineError

Schema = dict[str, Any]

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Paceline API</title>
<link rel="icon" type="image/svg+xml" href="/static/favicon.svg">
<link rel="stylesheet" href="/static/css/tokens.css">
<link rel="stylesheet" href="/static/css/base.css">
<script src="/static/js/theme-at-start.js"></script>
<style>
  main { max-width: 920px; margin: 0 auto; padding: 24px }
  h1 { font-size: 24px; line-height: 32px }
  h2 { margin-top: 40px; font-size: 20px; line-height: 28px }
  p { margin: 8px 0; color: var(--ink2) }
  nav a { margin-right: 16px }
  details { margin: 12px 0; padding: 12px 16px; background: var(--surface);
    border: 1px solid var(--line); border-radius: 8px }
  summary { cursor: pointer }
  summary code { font-weight: 600 }
  summary span { color: var(--ink2); margin-left: 8px }
  h3 { margin: 16px 0 4px; font-size: 12px; color: var(--ink2) }
  table { width: 100%; border-collapse: collapse }
  th, td { padding: 4px 8px 4px 0; text-align: left; vertical-align: top;
    border-top: 1px solid var(--line) }
  th { font-weight: 400; color: var(--ink3) }
  pre { padding: 12px; overflow: auto; background: var(--well); border-radius: 6px }
</style>
</head>
<body>
<main>
"""
# Codes of answers that are no `PacelineError`.
_OTHER_CODES = {
    "method_not_allowed": (405, "The path takes other methods, which Allow names."),
    "not_ready": (503, "No batch can be taken now; the detail says why, and checks has all."),
}
_FOOT = "</main>\n</body>\n</html>\n"


def reference_page(document: dict[str, Any]) -> str:
    """The whole page as HTML."""
    tags = [tag["name"] for tag in document.get("tags", [])]
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in [*tags, "schemas"])
    parts = [
        _HEAD,
        f"<h1>{escape(document['info']['title'])} {escape(document['info']['version'])}</h1>",
        f"<p>{escape(document['info'].get('description', ''))}</p>",
        '<p><a href="/openapi.json">openapi.json</a></p>',
        f"<nav>{links}</nav>",
        *(_tag(tag, document) for tag in document.get("tags", [])),
        _errors(),
        _schemas(document),
        _FOOT,
    ]
    return "\n".join(parts)


def _tag(tag: dict[str, str], document: dict[str, Any]) -> str:
    name = tag["name"]
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if name in operation.get("tags", [])
    ]
    heading = f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{escape(tag["description"])}</p>'
    return heading + "\n".join(operations)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    return "\n".join(
        [
            f'<details id="{escape(operation["operationId"])}">',
            f"<summary><code>{escape(method.upper())} {escape(path)}</code>",
            f"<span>{escape(operation.get('summary', ''))}</span></summary>",
            f"<p>{escape(operation.get('description', ''))}</p>",
            _parameters(operation.get("parameters", [])),
            _body(operation.get("requestBody")),
            _responses(operation["responses"]),
            "</details>",
        ]
    )


def _parameters(parameters: list[dict[str, Any]]) -> str:
    rows = [
        (
            parameter["name"],
            parameter["in"] + (", required" if parameter.get("required") else ""),
            _kind(parameter["schema"]),
            parameter.get("description", ""),
        )
        for parameter in parameters
    ]
    return _table("Parameters", ("name", "in", "type", ""), rows)


def _body(body: dict[str, Any] | None) -> str:
    if body is None:
        return ""
    rows = [(media, _kind(content.get("schema", {}))) for media, content in body["content"].items()]
    examples = [_example(content) for content in body["content"].values()]
    return _table("Body", ("content type", "type"), rows) + "".join(examples)


def _example(content: dict[str, Any]) -> str:
    if "example" not in content:
        return ""
    return f"<h3>Example</h3><pre>{escape(json.dumps(content['example'], indent=2))}</pre>"


def _responses(responses: dict[str, Any]) -> str:
    rows = []
    for status, response in responses.items():
        kinds = [
            _kind(content.get("schema", {})) for content in response.get("content", {}).values()
        ]
        rows.append((status, response.get("description", ""), ", ".join(filter(None, kinds))))
    return _table("Answers", ("status", "when", "type"), rows)


def _errors() -> str:
    known = {error.code: (error.status, _first_line(error)) for error in _answered()}
    body = "".join(
        f'<tr><td><code id="error-{escape(code)}">{escape(code)}</code></td>'
        f"<td>{status}</td><td>{escape(meaning)}</td></tr>"
        for code, (status, meaning) in sorted({**known, **_OTHER_CODES}.items())
    )
    heading = '<h2 id="errors">errors</h2><p>The <code>code</code> of a problem.</p>'
    return f"{heading}<table><tr><th>code</th><th>status</th><th>meaning</th></tr>{body}</table>"


def _answered() -> Iterator[type[PacelineError]]:
    # Of several classes with one code, the one nearest to the root gives its meaning.
    yield from reversed([*_all_errors(PacelineError)])


def _all_errors(base: type[PacelineError]) -> Iterator[type[PacelineError]]:
    yield base
    for error in base.__subclasses__():
        yield from _all_errors(error)


def _first_line(error: type[PacelineError]) -> str:
    return (error.__doc__ or "").partition("\n")[0]


def _schemas(document: dict[str, Any]) -> str:
    parts = ['<h2 id="schemas">schemas</h2>']
    for name, schema in sorted(document["components"]["schemas"].items()):
        required = set(schema.get("required", []))
        rows = [
            (
                field + (", required" if field in required else ""),
                _kind(kind),
                kind.get("description", ""),
            )
            for field, kind in schema.get("properties", {}).items()
        ]
        parts.append(f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code>')
        parts.append(f"</summary><p>{escape(schema.get('description', ''))}</p>")
        parts.append(_table("Fields", ("field", "type", ""), rows) + "</details>")
    return "\n".join(parts)


def _kind(schema: Schema) -> str:
    """Short name of a schema's type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_kind(choice) for choice in schema[key])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "")
    word = " or ".join(kind) if isinstance(kind, list) else str(schema.get("format", kind))
    return f"{word} of {_kind(schema['items'])}" if "items" in schema else word


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<h3>{escape(title)}</h3><table><tr>{head}</tr>{body}</table>"
