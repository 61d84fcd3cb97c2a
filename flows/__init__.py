"""The way the data goes, from photographs to a registered captioner. Read pipeline.py first."""
