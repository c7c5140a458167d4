"""A folder on any file system that Spark supports, through Hadoop's own classes, so that both see the same files."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.runtime.errors import OutputError, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, hadoop_configuration, jvm


class Folder:
    """A folder and what is below it; names are relative to it, with `/` between parts.

    Raises:
        OutputError: The path names no file system that Spark supports. Every method raises it when the file system
            refuses.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path = path
        self._jvm = jvm(spark)
        with self._told("used"):
            root = self._jvm.org.apache.hadoop.fs.Path(path)
            self._files = root.getFileSystem(hadoop_configuration(spark))
            self._root = self._files.makeQualified(root)

    def __str__(self) -> str:
        return self._path

    def path(self, name: str = "") -> str:
        return str(self._at(name).toString())

    def names(self, name: str = "") -> list[str]:
        with self._told("read"):
            at = self._at(name)
            if not self._files.exists(at):
                return []
            return [str(status.getPath().getName()) for status in self._files.listStatus(at)]

    def holds(self, name: str, suits: Callable[[str], bool]) -> bool:
        """Whether a folder below has something whose name suits; a look at the names ends at the first one."""
        with self._told("read"):
            at = self._at(name)
            if not self._files.exists(at):
                return False
            found = self._files.listStatusIterator(at)
            while found.hasNext():
                if suits(str(found.next().getPath().getName())):
                    return True
            return False

    def text(self, name: str) -> str | None:
        """Return a file's content; None if there is none."""
        with self._told("read"):
            at = self._at(name)
            if not self._files.exists(at):
                return None
            with closing(self._files.open(at)) as stream:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def put_text(self, name: str, text: str) -> None:
        """Write a file so that readers see all of it or nothing."""
        parent, slash, last = name.rpartition("/")
        # The leading dot hides the file from Spark's readers while it is written. Without a folder there is no slash:
        # what begins with one is elsewhere.
        draft = f"{parent}{slash}.{last}.{uuid.uuid4().hex}"
        with self._told("written"), closing(self._files.create(self._at(draft), True)) as stream:
            stream.write(bytearray(text.encode()))
        self.move(draft, name)

    def move(self, source: str, target: str) -> None:
        """Rename a file or folder; what bears the target's name is removed first."""
        self.delete(target)
        with self._told("written"):
            at = self._at(target)
            self._files.mkdirs(at.getParent())
            if not self._files.rename(self._at(source), at):
                raise OutputError(
                    f"{self.path(source)} cannot be renamed to {self.path(target)}. Check the rights on its folder."
                )

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; that it is absent is no error."""
        with self._told("written"):
            self._files.delete(self._at(name), True)

    def make(self, name: str) -> None:
        with self._told("written"):
            if not self._files.mkdirs(self._at(name)):
                raise OutputError(f"{self.path(name)} cannot be made. Check the rights on its folder.")

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        try:
            yield
        except JAVA_ERRORS as error:
            raise OutputError(f"{self._path} cannot be {verb}: {reason(error)}") from error


def upload(spark: SparkSession, file: Path, folder: Folder, name: str) -> None:
    """Copy a local file into a folder; what bears its name there is replaced."""
    path = jvm(spark).org.apache.hadoop.fs.Path
    try:
        target = path(folder.path(name))
        files = target.getFileSystem(hadoop_configuration(spark))
        files.copyFromLocalFile(False, True, path(file.resolve().as_uri()), target)
    except JAVA_ERRORS as error:
        raise OutputError(f"{folder.path(name)} cannot be written: {reason(error)}") from error
