"""Tests with one JVM, and no servers."""
