"""Clients in other processes, reached over a transport."""
