"""The settings of a run: read, checked, and completed by those of a pair of models."""
