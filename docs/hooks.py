"""A hook of the docs site: wide tables scroll inside the page."""


def on_page_content(html: str, **_: object) -> str:
    """Put every table of a page into a box that scrolls sideways."""
    return html.replace("<table>", '<div class="scrolls"><table>').replace("</table>", "</table></div>")
