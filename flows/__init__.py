"""Flows: the pipeline from photographs to a registered captioner, and what runs and uses it. Read pipeline.py first."""
