"""The site that `make docs` builds: README and docs/, a page for each message, and the public names.

* `python -m docs.website FOLDER` writes the site's sources, Markdown for Sphinx (`conf.py`): the pages of the
  repository as they are, with their folders, and generated ones.
* `message_pages` makes a page of a message's schema, with an example from `examples`; `api_pages` finds the names that
  the pages use.
* `python -m docs.website.check FOLDER` looks for links that lead nowhere, and for what is loaded from elsewhere, in the
  site that was built.
"""
