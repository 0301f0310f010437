"""Diarization: who spoke when, and who said each word."""
