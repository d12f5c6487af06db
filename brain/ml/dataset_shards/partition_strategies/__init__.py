"""One strategy a file; each ends in STRATEGY."""
