"""Samples in their order, read by workers, to batches."""
