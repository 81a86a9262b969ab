"""Bytes to batches: sources, decoding, the order of samples, transforms and the loader."""
