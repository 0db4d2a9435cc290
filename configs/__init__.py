"""Settings of the training programs, a folder for each; every file's docstring begins with the command that uses it."""
