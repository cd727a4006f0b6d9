"""What does the fleet's page show? The headline, and GPU-hours by day, cause and job.

Read `headline.py` first.
Imported by: api.
"""
