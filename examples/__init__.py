"""Example trainings recorded by Paceline."""
