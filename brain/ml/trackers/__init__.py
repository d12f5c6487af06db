"""Experiment trackers: one a file, each ending in `TRACKER`. The library is imported when a run is opened."""
