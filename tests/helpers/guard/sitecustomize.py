"""Installs, in each Python process that a test starts, the watch over files (see `watch_files.py`), and saves
in the background where a test asks for them."""

import background_saves
import watch_files

watch_files.install()
background_saves.install()
