"""Broken behaviours, one at a time, and whether a test notices: `scripts/test-mutants`."""
