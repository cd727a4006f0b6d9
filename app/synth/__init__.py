"""What would the workers of a job with a known fault have recorded?"""
