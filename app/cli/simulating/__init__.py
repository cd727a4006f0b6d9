"""What does `paceline simulate` need beside the job itself?"""
