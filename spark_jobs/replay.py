"""The file to give to `spark-submit`; it takes the options of `outbox replay`."""

from spark_jobs.replaying.cli import app

if __name__ == "__main__":
    app()
