"""The page of a project: its captions, scores and history, and what the next run would do."""
