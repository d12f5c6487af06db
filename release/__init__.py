"""What is said of a release: its dependencies, their licences, its bill of materials."""
