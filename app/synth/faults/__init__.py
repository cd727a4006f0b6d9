"""What can be wrong with a simulated job?

Read `fault` first, which is the interface, then `registry`, which lists every fault. A new fault
joins the module of its family.
"""
