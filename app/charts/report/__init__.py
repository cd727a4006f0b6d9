"""How does a result leave Paceline? As one HTML file, or as a PNG for messages and tickets.

Start with `html.py`. The CLI's report command and the pictures of alerts import it.
"""
