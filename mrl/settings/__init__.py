"""Reads and checks the settings of a run, and completes them for a pair of models."""
