"""How do the workers' batches wait, and become windows?"""
