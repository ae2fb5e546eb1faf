"""mini-mrl: mutual reinforcement learning between different language models."""

__version__ = "0.3.0"
