"""Recording: what does it cost a training, and how many bytes does it send?"""
