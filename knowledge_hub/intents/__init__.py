"""One intent a file; each ends in INTENT."""
