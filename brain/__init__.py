"""Samples to training; the only folder that imports torch."""
