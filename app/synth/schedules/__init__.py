"""In which order does a stage compute its micro-batches?"""
