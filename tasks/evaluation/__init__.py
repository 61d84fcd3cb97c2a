"""Stage `evaluate`: held-out pictures -> captions -> scores."""
