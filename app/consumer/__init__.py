"""The analysis process: takes batches from the event queue, and stores what windows tell."""
