"""Modules you may also run; each ends in a main() that only parses arguments."""
