"""Programs that show Paceline at work."""
