"""How often is the diagnosis of simulated jobs with known faults right? Start with command.py."""
