"""Plotly's own script, from the package that draws the figures, to be put into a file."""

from pathlib import Path

import plotly


def plotly_script() -> str:
    """The script's text."""
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    # Inside a page, this would end the script.
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")
