"""The server's half of a run, one stage per file."""
