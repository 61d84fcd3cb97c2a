"""The page of a project: what its workspace holds, how it grew, and what the next run would do."""
