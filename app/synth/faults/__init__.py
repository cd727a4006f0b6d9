"""What can be wrong with a made job?"""
