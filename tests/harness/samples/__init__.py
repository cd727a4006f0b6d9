"""Small good files of every format that can be imported, content by file name."""

from collections.abc import Callable, Mapping

from tests.harness.samples import kineto, ndtimeline, otlp, published

SAMPLES: Mapping[str, Callable[[], Mapping[str, bytes]]] = {
    "published": published.sample,
    "otlp": otlp.sample,
    "kineto": kineto.sample,
    "ndtimeline": ndtimeline.sample,
}
