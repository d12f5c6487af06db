"""One sample source a file; each ends in SAMPLE_SOURCE."""
