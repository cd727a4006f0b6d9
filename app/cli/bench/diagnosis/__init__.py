"""How often is the diagnosis right, on made jobs whose fault is known?"""
