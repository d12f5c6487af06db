"""Job files for schedulers, one a file, each ending in `EXPORT_FORMAT`."""
