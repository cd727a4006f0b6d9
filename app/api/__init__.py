"""What may a person, a page or a worker ask over HTTP?"""
