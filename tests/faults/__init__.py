"""The attack: damaged files, failing disks, signals, kills and odd options, counted. See `scripts/test-faults`."""
