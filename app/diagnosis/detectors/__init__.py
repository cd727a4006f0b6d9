"""Which causes are known, and what does each look like? One file each."""
