"""Stage 2: judges whether a completion is correct."""
