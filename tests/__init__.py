"""Tests by what they need: `unit`, `process`, `spark`, `integration`, `repository`; and `torture`."""
