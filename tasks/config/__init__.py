"""What a run depends on: sections, presets, and what this machine is."""
