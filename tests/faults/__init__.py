"""The attack: damaged files, failing disks, signals, kills, odd options, counted: `scripts/test-faults`."""
