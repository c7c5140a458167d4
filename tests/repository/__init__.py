"""Tests of the repository itself: layers, documents, rules, mutants."""
