"""Wyoming, the protocol of Home Assistant."""
