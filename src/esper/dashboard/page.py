"""Parts of the HTML page of a growth, which needs no other file."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

CSS = """
:root { --ink: #22313f; --quiet: #6b767f; --line: #e3e6e8; --green: #2b7a4b; --earth: #b35806;
--ground: #ffffff; --shade: #f6f7f7; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 78rem;
margin: 3rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.9rem; margin: 0; } h2 { font-size: 1.2rem; margin: 3rem 0 .4rem; }
p, figure { max-width: 68rem; } p { margin: .4rem 0 1rem; } .quiet { color: var(--quiet); }
figure { margin: 1rem 0 1.6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th { text-align: right; font-weight: 600; color: var(--quiet); } th:first-child, td:first-child { text-align: left; }
td { text-align: right; } th, td { padding: .35rem .5rem; white-space: nowrap; border-bottom: 1px solid var(--line); }
td.win { color: var(--green); } td.loss { color: var(--earth); }
td.text, th.text { text-align: left; white-space: normal; } details { margin: .6rem 0; }
pre { background: var(--shade); padding: 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; }
"""


def page(title: str, parts: Iterable[str], css: str = "") -> str:
    """Return a whole HTML page.

    Args:
        title: Title of the window.
        parts: Contents, as HTML; empty ones are left out.
        css: Rules that only this page needs.
    """
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(part for part in parts if part)
    head += f"<style>{CSS}{css}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def section(title: str, content: str) -> str:
    """Return contents under a heading, or nothing if they are empty."""
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>" if content else ""


def details(title: str, content: Mapping[str, Any]) -> str:
    """Return a record as JSON, folded away."""
    text = json.dumps(content, indent=2)
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
