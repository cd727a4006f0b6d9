"""What do OTLP traces with Megatron-LM's span names say? Host-side times of every rank.

Start with `otlp_import.py` for files; `messages.py`, `spans.py` and `steps.py` also serve the
API's OTLP endpoint.
"""
