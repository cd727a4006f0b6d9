"""What did the workers record?"""
