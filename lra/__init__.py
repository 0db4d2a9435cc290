"""The Long Range Arena program."""
