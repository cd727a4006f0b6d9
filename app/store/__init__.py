"""What is known about every job, and kept? The only SQL."""
