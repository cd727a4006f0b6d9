"""Where may a message go that a project's own people addressed, and how long may that take?"""
