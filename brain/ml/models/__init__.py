"""Models, one a file, each ending in `MODEL`."""
