"""How are operations of a training worker timed, buffered and packed into batches?

Read `timing` and `buffer` first. Nothing here knows a server; `sending` and the recorder import
it.
"""
