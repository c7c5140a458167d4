"""The whole run: every benchmark one after the other, one file of results, and what has become slower since."""
