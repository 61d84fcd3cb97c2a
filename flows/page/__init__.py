"""The page of a project: its captions, scores and history, and the plan of the next run."""
