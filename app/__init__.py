"""Paceline: why is this training job slow, and what would a fix win?"""
