"""Sentence to command; no input or output."""
