"""Few-shot evaluation: classifiers of frozen features."""
