"""Gradient estimates from function values."""
