"""The server's half of a run, a stage a file."""
