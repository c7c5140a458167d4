"""PySpark jobs over the topics: `land` puts real topics into a table, each record once."""
