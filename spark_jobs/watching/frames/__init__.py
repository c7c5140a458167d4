"""Frames that `watch` computes. Pure."""
