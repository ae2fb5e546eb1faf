"""Stage 2: how a completion is judged."""
