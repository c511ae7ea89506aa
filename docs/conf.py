"""Sphinx: `make docs` builds the pages into build/docs; a warning is an error."""

import neural_attention

project = "neural-attention"
author = copyright = "the neural-attention contributors"
version = release = neural_attention.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = "neural-attention"
html_static_path = []

# Links to headings, formulas in docstrings and pages, and tables as GitHub shows them.
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]

autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]
