"""Which bodies do receivers understand? One kind of receiver a file."""
