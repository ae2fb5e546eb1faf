"""Turns a directory or a hub name into a model on a device."""
