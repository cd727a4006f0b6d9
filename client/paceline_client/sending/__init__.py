"""How do batches reach the server, whatever happens to it?

Read `sender` first. It takes batches from `recording`; `startup` puts both together.
"""
