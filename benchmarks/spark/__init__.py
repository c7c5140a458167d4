"""How fast the Spark jobs are."""
