"""Recommendation models; they know nothing of federation."""
