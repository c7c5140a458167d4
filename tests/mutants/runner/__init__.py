"""What mutants are, and how they are run."""
