"""Ranking metrics and scoring."""
