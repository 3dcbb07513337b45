"""The pages of the public names: what `kcoord_wire` lists, and what the programs in README and docs/ import.

A package that these import from is shown whole, with every name of its `__all__`; of a module, the names that are
imported. Sphinx reads signatures and docstrings; message classes have pages of their own (`message_pages`).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import GenericAlias
from typing import Any, Final

import kcoord_wire as kw

API: Final = "api"
_PROGRAM: Final = re.compile(r"^```(?:python)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PACKAGE: Final = kw.__name__


def emit_api_pages(texts: Iterable[str]) -> dict[str, str]:
    """Return the text of each page by its path in the site's sources.

    :param texts: the pages whose programs are read
    """
    names = public_names(texts)
    pages = {f"{API}/{module}.md": "\n".join(_page(module, listed)) + "\n" for module, listed in names.items()}
    pages[f"{API}/index.md"] = "\n".join(_list(names)) + "\n"
    return pages


def public_names(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the public names of each module that has any, in order; those of messages are left out."""
    found: dict[str, set[str]] = {_PACKAGE: set(kw.__all__) - set(kw.messages.__all__)}
    for module, name in _imported(texts):
        listed = getattr(import_module(module), "__all__", None)
        found.setdefault(module, set()).update([name] if listed is None else listed)
    return {module: sorted(found[module], key=str.lower) for module in sorted(found)}


def _imported(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Module and name of each import from this package, in the programs of pages."""
    for program in (match[1] for text in texts for match in _PROGRAM.finditer(text)):
        try:
            nodes = list(ast.walk(ast.parse(program)))
        except SyntaxError:  # output, or a part of a program
            continue
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
                assert node.module is not None
                if not node.module.startswith(f"{_PACKAGE}.messages"):
                    yield from ((node.module, alias.name) for alias in node.names)


def _page(module: str, names: list[str]) -> Iterator[str]:
    yield f"# {module}"
    yield ""
    yield ", ".join(_link(module, name) for name in names)
    yield ""
    yield "```{eval-rst}"
    yield f".. automodule:: {module}"
    yield "   :no-members:"
    for name in names:
        yield ""
        yield from _directive(name, getattr(import_module(module), name))
    yield "```"


def _link(module: str, name: str) -> str:
    return f"[{name}](#{module}.{name})"


def _directive(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f".. py:data:: {name}"
        yield "   :type: module"
        yield ""
        yield f"   {(inspect.getdoc(value) or '').partition(chr(10))[0]}"
    elif inspect.isclass(value) and not isinstance(value, GenericAlias):
        yield f".. autoclass:: {name}"
        yield "   :members:"
    elif inspect.isroutine(value):
        yield f".. autofunction:: {name}"
    else:
        yield f".. py:data:: {name}"


def _list(names: dict[str, list[str]]) -> Iterator[str]:
    yield "# API"
    yield ""
    yield "The public names: those of `kcoord_wire`, and those that the programs of the pages import. Message classes"
    yield "are names of `kcoord_wire` too, and have [pages of their own](../messages/index.md)."
    yield ""
    yield "| module | what it is | names |"
    yield "|---|---|---|"
    for module, listed in names.items():
        about = (inspect.getdoc(import_module(module)) or "").partition("\n\n")[0]
        links = ", ".join(_link(module, name) for name in listed)
        yield f"| [{module}]({module}.md) | {' '.join(about.split()).replace('|', chr(92) + '|')} | {links} |"
    yield ""
    yield "```{toctree}"
    yield ":hidden:"
    yield ""
    yield from names
    yield "```"
