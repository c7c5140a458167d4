"""The file to give to `spark-submit`; it takes the options of `outbox land`."""

from spark_jobs.landing.cli import app

if __name__ == "__main__":
    app()
