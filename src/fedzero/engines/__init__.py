"""Engines: local (in process)."""
