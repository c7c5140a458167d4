"""Words that the project does not use, counted. What users see has none of them; elsewhere their number only falls.

The glossary (docs/glossary.md) has the words that are used instead.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("outbox", "relay", "checker", "spark_jobs", "stack")

BANNED = re.compile(
    r"\b(lie|lies|lying|lay|tell|tells|told|telling|says?|said|hears?|heard|knows|forgets|forgot|stands?"
    r"|nobody|somebody|whoever|anew|made again|so long|doubled|in vain|it is none|ha(s|ve) room)\b",
    re.IGNORECASE,
)
"""Objects do not talk, listen or stand; a reader should not have to guess who does what."""

MOST = {"strings": 0, "documents": 0, "docstrings": 0, "comments": 0}
"""The highest numbers that are accepted. Lower them when they have fallen; never raise them."""

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

TEMPLATES = sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.j2"))


def _modules() -> Iterator[tuple[Path, str]]:
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, path.read_text()


def _texts(source: str, *, docstrings: bool) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of several words: docstrings and those behind constants, or all others."""
    tree = ast.parse(source)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (id(node) in documented) is docstrings
            and " " in node.value
        ):
            yield node.lineno, node.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _read(kind: str) -> Iterator[tuple[Path, int, str]]:
    """Yield the texts of one kind, each with its file and its first line."""
    if kind == "documents":
        yield from ((path, 1, path.read_text()) for path in [*DOCUMENTS, *TEMPLATES])
        return
    read = {
        "strings": lambda source: _texts(source, docstrings=False),
        "docstrings": lambda source: _texts(source, docstrings=True),
        "comments": _comments,
    }[kind]
    for path, source in _modules():
        yield from ((path, *found) for found in read(source))


def _found(kind: str) -> Iterator[str]:
    for path, line, text in _read(kind):
        for match in BANNED.finditer(text):
            at = line + text.count("\n", 0, match.start())
            yield f"{path.relative_to(ROOT)}:{at} {match.group()!r}"


@pytest.mark.parametrize("kind", MOST)
def test_banned_words_only_fall(kind: str) -> None:
    found = list(_found(kind))
    assert len(found) <= MOST[kind], "\n".join(found)


_SENTENCE_END = re.compile(r"[.!?][\"”)\]*_]{0,3} +[\"“(*_\[]{0,3}[A-Z]")
_SHORT = re.compile(r"\b(e\.g|i\.e|vs|No|ca|[A-Z])\. ")


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a document that are neither code nor part of a table, without inline code."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith(("|", "#", "<", ">")) and not line.startswith("    "):
            yield number, re.sub(r"`[^`]*`", "x", line)


def test_documents_have_one_sentence_per_line() -> None:
    documents = {path.relative_to(ROOT).as_posix(): path for path in DOCUMENTS}
    found = [
        f"{name}:{number} {line}"
        for name, path in documents.items()
        for number, line in _prose(path.read_text())
        if _SENTENCE_END.search(_SHORT.sub("", re.sub(r"^\s*\d+\. ", "", line)))
    ]
    assert found == []
