"""The device that computes: copies beside its work, and the work that it repeats from graphs."""
