"""PySpark jobs over the topics: `land` puts them into tables, each record once, and keeps the tables."""
