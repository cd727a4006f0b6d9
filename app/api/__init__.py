"""Which questions does the service answer over HTTP?

Read `application.py` first: the middleware from the outside in, and every router. Then
`service/service.py`, the state that all routes share, and one file of `routes/`.
Imported by: cli, main, watch.
"""
