"""How soon does a reader see what there is to see, in a real browser?"""
