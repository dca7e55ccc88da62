"""Sphinx configuration of `make site`. The source folder is the repository, so that links work here and on GitHub."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

project = "lm"
author = "the lm developers"
project_copyright = author
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
root_doc = "docs/site/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "corpora/README.md",
    "docs/**.md",
    "docs/site/*.rst",
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
"""Headings have the anchors that GitHub gives them."""
suppress_warnings = ["misc.highlighting_failure", "myst.header", "ref.python"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True
"""Attributes are a list in the description of their class; they would be described twice otherwise."""

html_theme = "furo"
html_title = f"lm {release}"
html_extra_path = ["redirect"]
html_static_path, html_css_files = ["static"], ["lm.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
