"""One object store a file; each ends in STORE_SCHEME."""
