"""How far are the clocks of the hosts apart? (docs/clocks.md)"""
