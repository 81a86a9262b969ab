"""Pixels of any image file, by one rule."""
