"""Checkpoints in, checkpoints out: the format is recognised, every key is accounted for."""
