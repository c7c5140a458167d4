"""Java and jars."""
