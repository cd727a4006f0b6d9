"""Does a 2xx hold, whatever dies? Real servers, real faults, and an oracle that keeps count."""
