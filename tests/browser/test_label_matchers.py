"""Patterns on the page mean what they mean to the server."""

import json
import random
import re

from app.alerts.labels import Matcher, all_match


def test_page_and_server_match_label_patterns_alike(on_call):
    draw = random.Random(7)
    parts = [*"ab*?[]!-\\.(+$^|{\u5b57", "[ab]", "[!a]", "[a-c]", "[]", "[]a]"]
    letters = "ab-[]!.*?\\(+$^|{\u5b57"
    patterns = ["".join(draw.choices(parts, k=draw.randint(0, 5))) for _ in range(600)]
    texts = ["".join(draw.choices(letters, k=draw.randint(0, 4))) for _ in range(600)]
    # Of a range that runs backwards the standard library makes what nobody means.
    cases = [
        (pattern, text)
        for pattern, text in zip(patterns, texts, strict=True)
        if not any(low > high for low, high in re.findall("(?=(.)-(.))", pattern))
    ]
    assert len(cases) > 200
    page = on_call().page
    theirs = page.evaluate(
        """async cases => {
            const { allMatch, literal } = await import("/static/js/components/alerts/matchers.js")
            const one = pattern => [{ label: "x", pattern, is_negative: false }]
            return cases.map(([pattern, text]) => [
                allMatch(one(pattern), { x: text }), allMatch(one(literal(text)), { x: text }),
            ])
        }""",
        cases,
    )
    ours = [[all_match([Matcher("x", pattern)], {"x": text}), True] for pattern, text in cases]
    wrong = [
        json.dumps([case, mine])
        for case, mine, other in zip(cases, ours, theirs, strict=True)
        if mine != other
    ]
    assert wrong == []
