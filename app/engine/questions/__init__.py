"""What would a step take if these operations took another time? A user's own question."""
