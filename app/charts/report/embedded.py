"""Plotly's script and the page's font inside an HTML file that fetches nothing."""

from base64 import b64encode
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assets:
    """Plotly's script, compressed by gzip, and the font as WOFF2."""

    script_gz: bytes
    font: bytes


def script_data(assets: Assets) -> str:
    """The compressed script as data of the page; `LOADER` makes a script of it."""
    data = b64encode(assets.script_gz).decode()
    return f'<script type="text/plain" id="plotly">{data}</script>'


def font_face(assets: Assets) -> str:
    """The font as CSS."""
    data = b64encode(assets.font).decode()
    return (
        "@font-face { font-family: Inter; font-weight: 100 900; "
        f"src: url(data:font/woff2;base64,{data}) format('woff2') }}\n"
    )


# Compressed the script is a third as long; browsers since 2023 decompress it themselves.
LOADER = """
async function loadPlotly() {
  const text = atob(document.getElementById("plotly").textContent)
  const packed = Uint8Array.from(text, (c) => c.charCodeAt(0))
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))
  const script = document.createElement("script")
  script.textContent = await new Response(stream).text()
  document.head.append(script)
}
"""
