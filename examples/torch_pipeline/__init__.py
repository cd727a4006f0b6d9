"""A small transformer, trained in a pipeline with PyTorch and recorded."""
