"""Encoders from text to news vectors."""
