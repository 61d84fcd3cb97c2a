"""The page on which people correct captions, and its server."""
