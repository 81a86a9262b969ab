"""Formats that other libraries keep checkpoints in, and our own: each file reads and writes one of them."""
