"""Docs say what the code says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEDGER = (ROOT / "docs/findings.md").read_text()
SIZES = {"A": 30, "B": 6, "C": 8, "D": 12, "E": 8}


def test_the_tables_of_the_docs_are_the_codes():
    result = subprocess.run([sys.executable, "docs/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"run make docs: {result.stdout}{result.stderr}"


def test_every_finding_has_its_row():
    ids = re.findall(r"^\| ([A-E]\d+)\b", LEDGER, re.MULTILINE)
    assert ids == [f"{section}{number}" for section, count in SIZES.items() for number in range(1, count + 1)]


def test_every_test_in_the_ledger_exists():
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", LEDGER)
    assert named
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), test


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in nav
