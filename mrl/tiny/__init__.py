"""See the list of files in mrl/runtime/RUNNING.md."""
