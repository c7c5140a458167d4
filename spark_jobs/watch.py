"""The file to give to `spark-submit`; it takes the options of `outbox watch`."""

from spark_jobs.watching.cli import app

if __name__ == "__main__":
    app()
