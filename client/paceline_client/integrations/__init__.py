"""Which frameworks can be recorded without writing to the recorder by hand? One file each."""
