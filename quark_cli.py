"""Runs the `quark` program from a checkout: `python quark_cli.py "train quark with <path>"`."""

from tools_utilities.scripts.quark_cli import main

if __name__ == "__main__":
    main()
