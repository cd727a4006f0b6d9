"""The routes, one noun a file with the models that it speaks."""
