"""The structure that docs/architecture.md promises: one-way imports, no circles, a place for every folder."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from docs.render import FOLDERS
from tasks.captioner.exported.folder import TORCH_FREE
from tests.support import HERE

# The folders of models/, and those two levels deep, import within their room as they like.
ROOMS = tuple(folder.replace("/", ".") for folder in FOLDERS if not re.match("models/|.*/.*/", folder))
FILES = {
    ".".join(path.relative_to(HERE).with_suffix("").parts).removesuffix(".__init__"): path
    for top in ("models", "tasks", "flows")
    for path in (HERE / top).rglob("*.py")
}


def imports_of(module: str) -> Iterator[str]:
    """All modules of the project that a module imports: inside functions and under TYPE_CHECKING too."""
    path = FILES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names if item.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{source}.{item.name}" for item in node.names]
            yield from (name if name in FILES else source for name in names if name in FILES or source in FILES)


def room_of(module: str) -> str:
    return max((room for room in ROOMS if module == room or module.startswith(f"{room}.")), key=len)


def test_no_modules_import_each_other() -> None:
    graph = {module: set(imports_of(module)) - {module} for module in FILES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")


def test_rooms_import_one_way() -> None:
    # tasks/__init__.py sets the number of threads before anything loads torch.
    allowed = {("tasks", "tasks.common.cores")}
    upwards = [
        f"{module} -> {imported}"
        for module in FILES
        for imported in imports_of(module)
        if ROOMS.index(room_of(imported)) > ROOMS.index(room_of(module)) and (module, imported) not in allowed
    ]
    assert not upwards


def test_models_need_torch_alone() -> None:
    """A registered model carries a copy of models/, where neither tasks nor their libraries are.

    What goes into an exported folder needs onnxruntime instead of torch.
    """
    for module, path in FILES.items():
        if not module.startswith("models"):
            continue
        known = {"torch", "torchvision", "simplejpeg", "safetensors", "numpy", "PIL", "timm"}
        if module.startswith("models.onnx") or path.name in TORCH_FREE:
            known = {"onnxruntime", "numpy", "PIL", "simplejpeg"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            tops = {name.partition(".")[0] for name in names}
            assert tops <= known | sys.stdlib_module_names, module


def test_no_test_file_imports_another() -> None:
    importing = re.compile(r"^\s*(?:from|import) tests\.(?:\w+\.)*test_", re.MULTILINE)
    assert [path for path in (HERE / "tests").rglob("*.py") if importing.search(path.read_text())] == []


def test_every_folder_is_in_the_order() -> None:
    folders = {module if path.name == "__init__.py" else module.rpartition(".")[0] for module, path in FILES.items()}
    assert folders == {folder.replace("/", ".") for folder in FOLDERS}


@pytest.mark.parametrize("package", ["torch", "nltk", "pandas"])
def test_a_plan_needs_no_slow_import(package: str) -> None:
    """`attend status` and a run with nothing to do answer without the seconds that these imports take."""
    modules = "flows.configs, flows.pipeline, flows.planned_run, flows.commands.story"
    code = f"import sys, {modules}; sys.exit('{package}' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
