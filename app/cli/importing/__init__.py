"""How do traces and scores of other tools come into Paceline?"""
