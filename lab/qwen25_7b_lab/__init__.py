"""Measures the port and prices its operations. Nothing imports it."""
