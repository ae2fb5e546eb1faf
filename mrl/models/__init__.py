"""From a folder or a hub name to a model on a device."""
