"""Sphinx: `make docs` builds the site into site/. Every warning (a broken link, anchor or page without a place) is an error."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generated  # noqa: E402

GENERATED = {"reference/parameters": generated.parameters_page, "reference/verbs": generated.verbs_page}

project = "goldfold"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
highlight_language = "none"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
default_role = "literal"  # docstrings mark code by single backquotes
add_module_names = False
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "goldfold"
html_logo = html_favicon = "theme/logo.svg"
html_static_path = ["theme"]
html_css_files = ["goldfold.css"]
smartquotes = False
html_copy_source = html_show_sphinx = html_show_copyright = html_use_index = html_domain_indices = False
pygments_style, pygments_dark_style = "friendly", "native"
COLOURS = {  # light and dark: those of the report page, competition/report/page.css
    "color-background-primary": ("#fbfaf7", "#17191c"),
    "color-background-secondary": ("#f4efe4", "#1d1f22"),
    "color-background-border": ("#e0dcd2", "#3a3f45"),
    "color-background-hover": ("#ebe3d1", "#2c2a26"),
    "color-foreground-primary": ("#22252a", "#e6e3dc"),
    "color-foreground-secondary": ("#5d626b", "#a3a9b1"),
    "color-foreground-muted": ("#6b6250", "#a3a9b1"),
    "color-brand-primary": ("#7a4a12", "#e0b04a"),
    "color-brand-content": ("#8f660a", "#e0b04a"),
    "color-brand-visited": ("#7a4a12", "#d2a679"),
    "color-api-name": ("#7a4a12", "#e0b04a"),
    "color-code-background": ("#f4efe4", "#202327"),
    "color-inline-code-background": ("#f1ebdd", "#2a2d32"),
    "color-table-header-background": ("#f3e7c8", "#3d3522"),
    "color-highlighted-background": ("#f3e7c8", "#55481f"),
    "color-highlight-on-target": ("#f3e7c8", "#3d3522"),
}
FONT = {"font-stack": "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"}
html_theme_options = {
    "light_css_variables": FONT | {name: light for name, (light, _) in COLOURS.items()},
    "dark_css_variables": {name: dark for name, (_, dark) in COLOURS.items()},
}


def setup(app: Sphinx) -> None:
    """Replace the generated pages when they are read; in the folder they hold a title only."""

    def generate(app: Sphinx, name: str, source: list[str]) -> None:
        if name in GENERATED:
            source[0] = GENERATED[name]()

    app.connect("source-read", generate)
