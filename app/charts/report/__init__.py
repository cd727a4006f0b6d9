"""How does a result leave Paceline? As one HTML file, or as a PNG for messages.

Read `html.py` first.
Imported by: api, cli, consumer.
"""
