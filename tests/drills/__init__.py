"""Incidents as operators meet them: `python -m tests.drills` plays each, and writes docs/operations/drills.md."""
