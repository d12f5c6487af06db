"""One launch target a file; each ends in LAUNCH_TARGET."""
