"""The attack: damaged files, failing disks, signals and kills, counted: `scripts/test-faults`."""
