"""How do other tools write down what was recorded?"""
