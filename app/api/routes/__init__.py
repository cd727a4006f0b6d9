"""Which operations does the API have? One noun a file, with the schemas that it speaks.

Read `jobs/jobs.py` as an example, and `dependencies.py` for what routes ask for by type. `jobs` is
how data comes in, `windows` the results of one job, `fleet` all jobs and hosts, `alerts` rules,
alerts and receivers. `application.py` includes every router.
"""
