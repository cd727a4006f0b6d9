"""Alerts under crashes: slow jobs, receivers, a webhook listener, and the judge of both."""
