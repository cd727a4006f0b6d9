"""API reference, rendered from the OpenAPI document as HTML without scripts."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from app.errors import PacelineError

# Codes of answers that are no `PacelineError`.
_OTHER_CODES = {
    "method_not_allowed": (405, "The path takes other methods, which Allow names."),
    "not_ready": (503, "No batch can be taken now; the detail says why, and checks has all."),
}


def reference_body(document: dict[str, Any]) -> str:
    """The reference as HTML, without a frame."""
    parts = [
        f"<h1>{escape(document['info']['title'])} {escape(document['info']['version'])}</h1>",
        f"<p>{escape(document['info'].get('description', ''))}</p>",
        '<p><a href="/openapi.json">openapi.json</a></p>',
        *(_tag(tag, document) for tag in document.get("tags", [])),
        _errors(),
        _schemas(document),
    ]
    return "\n".join(parts)


def reference_sections(document: dict[str, Any]) -> list[str]:
    """The anchors of its chapters, in order."""
    return [*(tag["name"] for tag in document.get("tags", [])), "errors", "schemas"]


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
    text = json.dumps(content["example"], indent=2)
    return f'<h3>Example</h3><pre tabindex="0">{escape(text)}</pre>'


def _responses(responses: dict[str, Any]) -> str:
    rows = []
    for status, response in responses.items():
        kinds = [
            _kind(content.get("schema", {})) for content in response.get("content", {}).values()
        ]
        rows.append((status, response.get("description", ""), ", ".join(filter(None, kinds))))
    return _table("Answers", ("status", "when", "type"), rows)


def _errors() -> str:
    # Of several classes with one code, the one nearest to the root gives its meaning.
    known = {
        error.code: (error.status, (error.__doc__ or "").partition("\n")[0])
        for error in reversed([*_all_errors(PacelineError)])
    }
    body = "".join(
        f'<tr><td><code id="error-{escape(code)}">{escape(code)}</code></td>'
        f"<td>{status}</td><td>{escape(meaning)}</td></tr>"
        for code, (status, meaning) in sorted({**known, **_OTHER_CODES}.items())
    )
    heading = '<h2 id="errors">errors</h2><p>The <code>code</code> of a problem.</p>'
    head = "<tr><th>code</th><th>status</th><th>meaning</th></tr>"
    return f"{heading}{_framed(head + body, 'Errors')}"


def _all_errors(base: type[PacelineError]) -> Iterator[type[PacelineError]]:
    yield base
    for error in base.__subclasses__():
        yield from _all_errors(error)


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


def _kind(schema: dict[str, Any]) -> str:
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
    if prefix := schema.get("prefixItems"):
        return f"{word} of {', '.join(_kind(item) for item in prefix)}"
    return f"{word} of {_kind(schema['items'])}" if "items" in schema else word


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<h3>{escape(title)}</h3>{_framed(f'<tr>{head}</tr>{body}', title)}"


def _framed(rows: str, label: str) -> str:
    """A table in a frame of its own, which scrolls where the page is narrow."""
    return (
        f'<div class="table-frame" tabindex="0" role="group" aria-label="{escape(label)}">'
        f"<table>{rows}</table></div>"
    )
