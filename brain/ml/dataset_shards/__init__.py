"""Shards to samples in an exact order."""
