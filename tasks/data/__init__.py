"""Stages `ingest` and `tensorise`: data set -> manifest -> token ids."""
