"""What stands around a team: files, problems, evaluation, logs, the live view, processes."""
