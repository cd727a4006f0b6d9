"""Schema: does a running API keep to its own description? Wants Schemathesis."""
