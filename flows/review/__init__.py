"""`attend review serve`: the page on which people correct captions."""
