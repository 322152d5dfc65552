"""Make one HTML file out of the page's modules and data: a file that needs no server and no network."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.-]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)
STYLES = ("uPlot.min.css", "style.css")
LIBRARY = "uPlot.iife.min.js"
ENTRY = "report.js"


def source(name: str) -> str:
    """Return the text of a file of the page."""
    return (files("esper.dashboard") / "static" / name).read_text(encoding="utf-8")


def modules(entry: str = ENTRY) -> dict[str, str]:
    """Return the sources of a module and of all that it imports, each behind those that it needs."""
    found: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in found:
            return
        text = source(name)
        for needed in IMPORT.findall(text):
            visit(needed)
        found[name] = text

    visit(entry)
    return found


def script(entry: str = ENTRY) -> str:
    """Return a module and all that it imports as one script, in which every top-level name is defined once."""
    return "\n".join(EXPORT.sub("", IMPORT.sub("", text)) for text in modules(entry).values())


def page(title: str, data: Mapping[str, Any]) -> str:
    """Return an HTML file with the modules of the report, its styles and its data.

    The file forbids itself everything but its own scripts and styles, which it names by their hashes.

    Args:
        title: Title of the window.
        data: What the page reads, as JSON.
    """
    style, library, own = "\n".join(map(source, STYLES)), source(LIBRARY), script()
    policy = (
        f"default-src 'none'; script-src {_hashes([library, own])}; style-src {_hashes([style])};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    # A "<" could end the element that holds the data.
    held = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    head = (
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n<style>{style}</style>'
    )
    body = (
        "<noscript>This report draws its figures with JavaScript.</noscript>\n"
        f'<script type="application/json" id="data">{held}</script>\n'
        f'<script>{library}</script>\n<script type="module">{own}</script>'
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)
