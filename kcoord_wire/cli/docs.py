"""`kcoord docs`: the site that `make docs` builds, in the browser, from its files."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from kcoord_wire.cli.messages import find_messages
from kcoord_wire.cli.options import Argument, Command, Option

CHECKOUT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Docs(Command):
    """Open the documentation in the browser: its pages, every message, the public names.

    It is read from files, without a server or a network. `make docs` builds it in a checkout; an installation has it in
    share/doc/kcoord_wire if it was copied there.

    examples:
      kcoord docs
          its first page
      kcoord docs JoinGroup
          the page of a message
      kcoord docs --where
          the folder, and no browser
    """

    name: Annotated[str | None, Argument("NAME", "api key or name of a message: its page")] = None
    where: Annotated[bool, Option("print where it is instead")] = False

    def run(self) -> None:
        """Open the page, or print its path."""
        site = find_site()
        page = site / "index.html"
        if self.name is not None:
            page = site / "messages" / f"{find_messages(self.name)[0].name}.html"
        if self.where:
            print(site if self.name is None else page)
        elif not webbrowser.open(page.as_uri()):
            raise OSError(f"there is no browser to open {page}")


def find_site() -> Path:
    """Return the folder of the site.

    :raises FileNotFoundError: it is not there
    """
    installed = Path(sys.prefix, "share", "doc", "kcoord_wire")
    for site in (CHECKOUT / "build" / "site", installed):
        if (site / "index.html").is_file():
            return site
    raise FileNotFoundError(
        f"the documentation is not built: `make docs` in a checkout writes it to build/site; copied to {installed} "
        "it is found there as well"
    )
