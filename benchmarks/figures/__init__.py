"""How fast and how right is this commit, on this machine, beside others and beside its memory?"""
