"""Examples: programs that use the product as its users do."""
