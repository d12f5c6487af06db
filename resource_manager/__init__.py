"""Command to job: finds, plans, starts; never imports torch."""
