"""How do batches reach the server, in spite of failures?

Read `sender.py` first. It takes batches from `recording`; `startup.py` puts both together.
Imported by: cli, paceline_client, watch.
"""
