"""How does the fleet's page look? The headline, GPU-hours by day and cause, and one mark a job.

Start with `headline.py`. Only the API's fleet routes import it.
"""
