"""See the list of files in mrl/cli/RUNNING.md."""
