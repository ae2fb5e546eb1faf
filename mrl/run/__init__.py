"""Everything around a team: files, problems, evaluation, logs, the live view, and processes."""
