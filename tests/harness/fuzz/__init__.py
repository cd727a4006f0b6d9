"""Damaged batches, files and decompression bombs, and what reading them does to a process."""
