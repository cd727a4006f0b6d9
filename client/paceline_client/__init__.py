"""Records what a training worker does, and sends it to Paceline without disturbing training."""
