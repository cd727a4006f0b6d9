"""Which questions does the service answer over HTTP?

Read `application.py` first: the middleware from the outside in, and every router. Then
`service/service.py`, the state that all routes share, and one file of `routes/`. Folders: `http` is
what every request passes, `service` is what one process holds, `routes` has one noun a file with
its own schemas. Only `app.main` and commands import this package; it imports store, ingest, alerts
and charts, and knows no SQL, no Redis and no outgoing HTTP.
"""
