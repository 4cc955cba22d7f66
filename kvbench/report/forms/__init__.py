"""Sheets as text."""
