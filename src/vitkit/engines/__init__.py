"""Inference engines: other programs that compute a model's logits, fed vitkit's own graph."""
