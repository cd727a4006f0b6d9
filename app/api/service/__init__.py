"""What does one API process hold for its routes?

Read `service.py` first: `Service` has every cache, connection and limit. Each other module is one
field of it, or what routes of several folders ask of it. Imports `app.api.http`, never
`app.api.routes`.
"""
