"""The command `trainer`."""
