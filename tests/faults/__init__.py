"""The attack: damaged files, and studies that are killed."""
