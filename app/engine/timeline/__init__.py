"""What did every worker do and when, and what would it have done without stragglers?"""
