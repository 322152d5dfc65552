"""Serve run folders and growth logs as a local web page."""
