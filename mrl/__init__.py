"""mini-mrl: mutual reinforcement learning between different language models."""
