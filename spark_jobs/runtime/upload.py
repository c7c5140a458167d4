"""A file of the driver's machine, copied to where all of Spark can read it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.runtime.errors import OutputError, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JAVA_ERRORS, hadoop_configuration, jvm


def upload(spark: SparkSession, file: Path, folder: Folder, name: str) -> None:
    """Copy a local file into a folder; what bears its name there is replaced."""
    path = jvm(spark).org.apache.hadoop.fs.Path
    try:
        target = path(folder.path(name))
        files = target.getFileSystem(hadoop_configuration(spark))
        files.copyFromLocalFile(False, True, path(file.resolve().as_uri()), target)
    except JAVA_ERRORS as error:
        raise OutputError(f"{folder.path(name)} cannot be written: {reason(error)}") from error
