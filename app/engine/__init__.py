"""How slow is the job, compared with the same steps without stragglers?"""
