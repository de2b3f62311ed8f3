"""Clients on other machines: sites, the engine that reaches them, and who conducts a run with them."""
