"""The file to give to `spark-submit`; it takes the options of `outbox audit`."""

from spark_jobs.auditing.cli import app

if __name__ == "__main__":
    app()
