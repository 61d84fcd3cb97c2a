"""The config of a run: its sections, the presets, and the properties of this machine."""
