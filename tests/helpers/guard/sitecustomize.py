"""Installs the watch over files in each Python process that a test starts (see `watch_files.py`)."""

import watch_files

watch_files.install()
