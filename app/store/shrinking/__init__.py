"""What keeps the database small: old windows thinned, free pages given back."""
