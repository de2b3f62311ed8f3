"""Objectives of the papers' experiments."""
