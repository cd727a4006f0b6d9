"""Why is the job slow, who is to blame, since when, and what does it cost?"""
