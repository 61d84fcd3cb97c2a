"""Generate docs/settings.md, the table of docs/commands.md and the files of docs/architecture.md from the code.

    python -m docs.render [--check]

--check: write nothing, and end with exit code 1 if a page differs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from flows.commands.cli import app
from tasks.config.reference import Setting, sections

DOCS = Path(__file__).parent
SETTINGS, COMMANDS, ARCHITECTURE = DOCS / "settings.md", DOCS / "commands.md", DOCS / "architecture.md"
# The folders of the code. Those of tasks/ and flows/ import from those before them, never from those after them.
FOLDERS = (
    "models",
    "models/backbones",
    "models/decoders",
    "models/onnx",
    "tasks",
    "tasks/common",
    "tasks/datasets",
    "tasks/metrics",
    "tasks/review",
    "tasks/config",
    "tasks/config/presets",
    "tasks/pipeline",
    "tasks/data",
    "tasks/grids",
    "tasks/neighbours",
    "tasks/training",
    "tasks/evaluation",
    "tasks/inspection",
    "tasks/captioner",
    "tasks/captioner/exported",
    "tasks/mlflow_store",
    "tasks/registry",
    "flows",
    "flows/registered",
    "flows/page",
    "flows/operations",
    "flows/serving",
    "flows/review",
    "flows/commands",
)
_TABLE = re.compile(r"<!-- commands -->\n.*?<!-- end -->", re.DOTALL)
_FILES = re.compile(r"<!-- files -->\n.*?<!-- end -->", re.DOTALL)
_SECTIONS = re.compile(r"<!-- settings -->\n.*?<!-- end -->", re.DOTALL)
_WITHOUT_PATH = ("data.scenes", "data.sources")  # formats that read no files of their own
_SHARED = {"workspace": "`--workspace`", "as_json": "`--json`", "until": "`--until`"}  # parameters with own columns


def main() -> None:
    """Render the pages, or check them."""
    for path, render in PAGES.items():
        before = path.read_text(encoding="utf-8")
        after = render(before)
        if "--check" not in sys.argv[1:]:
            path.write_text(after, encoding="utf-8")
        elif before != after:
            raise SystemExit(f"{path}: differs from the program: run python -m docs.render")


def rendered_settings(page: str) -> str:
    """Return docs/settings.md with sections generated from the code."""
    known = sections()
    formats = [part.settings for name, part in known.items() if name.startswith("data.") and name not in _WITHOUT_PATH]
    shared = [one for one in formats[0] if all(one in others for others in formats)]
    parts: list[str] = []
    for name, part in known.items():
        if name.startswith("data.") and not any(line.startswith("### data\n") for line in parts):
            parts.append(_section("data", "The data set (stage `ingest`): settings of all formats.", shared))
        own = [one for one in part.settings if one not in shared and not one.name.endswith(".adapter")]
        parts.append(_section(name, part.about, own))
    body = "\n".join(parts)
    return _SECTIONS.sub(lambda _: f"<!-- settings -->\n{body}<!-- end -->", page)


def rendered_commands(page: str) -> str:
    """Return docs/commands.md with a table of commands generated from the code."""
    head = ["command", "what it does", "overrides", *_SHARED.values(), "other options"]
    lines = [_row(head), _row(["---"] * len(head)), *(_row(_command(*item)) for item in commands())]
    return _TABLE.sub(lambda _: "\n".join(["<!-- commands -->", *lines, "<!-- end -->"]), page)


def rendered_architecture(page: str) -> str:
    """Return docs/architecture.md with the list of folders and files, and the first lines of their docstrings."""
    lines: list[str] = []
    for folder in FOLDERS:
        path = DOCS.parent / folder
        files = sorted(file for file in path.glob("*.py") if file.name != "__init__.py")
        rows = [_row([f"[{file.name}](../{folder}/{file.name})", _first_line(file)]) for file in files]
        lines += [f"### {folder}/", "", _cell(_first_line(path / "__init__.py")), ""]
        if rows:
            lines += [_row(["file", "what it is"]), _row(["---"] * 2), *rows, ""]
    return _FILES.sub(lambda _: "\n".join(["<!-- files -->", *lines, "<!-- end -->"]), page)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command of `attend` with its full name, first those without a group."""
    top = typer.main.get_command(app)
    groups: list[tuple[str, Any]] = []
    for name, command in top.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            groups += [(f"{name} {own}", part) for own, part in command.commands.items()]
        else:
            yield name, command
    yield from groups


def _first_line(path: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].removesuffix(".")


def _command(name: str, command: Any) -> list[str]:
    """Return the cells of a command's row."""
    options = {param.name: param for param in command.params if param.param_type_name == "option"}
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    shown = [_argument(param) for param in arguments if param.name != "overrides"]
    others = [f"`{param.opts[0]}`" for key, param in options.items() if key not in _SHARED]
    return [
        f"`{' '.join(['attend', name, *shown])}`",
        command.help.strip().split("\n\n")[0].replace("\n", " "),
        _mark("on" in options or any(param.name == "overrides" for param in arguments)),
        *(_mark(key in options) for key in _SHARED),
        ", ".join(others),
    ]


def _argument(param: Any) -> str:
    """Return an argument as shown in a usage line."""
    name = (param.metavar or param.name.upper()).strip("[]")
    return name if param.required else f"[{name}]"


def _mark(there: bool) -> str:
    return "yes" if there else ""


def _section(name: str, about: str, settings: list[Setting]) -> str:
    """Return a section: its name, a line about it, and a table of its settings."""
    heading = f"### {name}\n\n{_cell(about)}\n"
    if not settings:
        return heading
    rows = [_row(["setting", "type", "default", "what it is"]), _row(["---"] * 4), *map(_setting, settings)]
    return "\n".join([heading, *rows, ""])


def _setting(one: Setting) -> str:
    kind = f"{one.type}, {one.bounds}" if one.bounds else one.type
    default = "*needed*" if one.default is None else f"`{one.default}`" if one.default else ""
    return _row([f"`{one.name}`", kind, default, one.about])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_cell(cell).replace("|", "\\|") for cell in cells) + " |"


def _cell(text: str) -> str:
    """Return a text with `<` escaped where Markdown would read a tag."""
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", text)


PAGES = {SETTINGS: rendered_settings, COMMANDS: rendered_commands, ARCHITECTURE: rendered_architecture}

if __name__ == "__main__":
    main()
