"""Encoders from clicked news vectors to user vectors."""
