"""The server of a federation, and the queue of its runs."""
