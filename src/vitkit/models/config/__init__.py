"""Configurations of models, which import no torch."""
