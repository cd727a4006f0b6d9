"""What do OTLP traces with Megatron-LM's span names contain? Host times of every rank.

Read `otlp_import.py` first for files; `messages.py`, `spans.py` and `steps.py` also serve the API's
OTLP endpoint.
Imported by: api, trace.
"""
