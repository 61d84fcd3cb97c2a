"""The pages say what is so: links lead somewhere, commands parse, configs load, examples run, and pages are current."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from PIL import Image

from docs import render
from flows.commands.cli import app
from tasks.common.ports import is_listening
from tasks.config.presets import presets
from tasks.config.schema import load, refusals
from tests.cli import Capture, attend
from tests.photographs import ANNOTATIONS, RESULTS, picture
from tests.support import HERE, free_port, pictures, trained

DOCS = HERE / "docs"
PAGES = sorted([*HERE.glob("*.md"), *DOCS.glob("*.md")])
KINDS = {"sh", "sh norun", "yaml", "python", "text"}  # others are contents of a file, whose path follows
NOT_STARTED = {"demo", "run", "serve", "ui", "up", "down"}  # minutes, or servers: see the slow tests
NOT_DONE = {"models promote", "models rollback"}  # need versions that are not here
PHOTOS = 30


class Block(NamedTuple):
    """A fenced block. section: the text of its section before it."""

    page: Path
    line: int
    info: str
    text: str
    section: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


class Line(NamedTuple):
    """A command of `attend` in a block: its name, and the arguments after it."""

    block: Block
    name: str
    arguments: list[str]


def blocks_of(page: Path) -> Iterator[Block]:
    begun, info, inside, section = 0, "", list[str](), list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if begun:
                yield Block(page, begun, info, "\n".join(inside) + "\n", "\n".join(section))
            begun, info, inside = (0 if begun else number), line[3:].strip(), []
        elif begun:
            inside.append(line)
        else:
            section = [line] if line.startswith("#") else [*section, line]
    assert not begun, f"{page.name}:{begun}: the block has no end"


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def prose_of(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def known_commands() -> dict[str, Any]:
    return dict(render.commands())


def command_of(words: list[str]) -> tuple[str, Any, list[str]]:
    """The name of the command that these words call, the command, and its arguments; KeyError where there is none."""
    known = known_commands()
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in known:
            return name, known[name], words[length:]
    raise KeyError(" ".join(words[:2]))


def attend_lines(blocks: list[Block]) -> Iterator[Line]:
    for block in blocks:
        if not block.info.startswith("sh"):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = [*itertools.takewhile(lambda word: word != ">", shlex.split(line, comments=True))]
            if "attend" in words and words[0] in ("attend", "torchrun"):
                name, _, arguments = command_of(words[words.index("attend") + 1 :])
                yield Line(block, name, arguments)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in prose_of(page).splitlines() if line.startswith("#")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), target


def test_readme_is_a_page_and_names_every_other() -> None:
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120
    assert [path.name for path in DOCS.glob("*.md") if f"(docs/{path.name})" not in "\n".join(lines)] == []


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    for block in BLOCKS:
        assert block.info in KINDS or re.fullmatch(r"(jsonl|json|csv|txt) [\w./]+", block.info), block.where
        if block.info == "sh norun":
            assert re.search(r"not\s+run\s+by\s+the\s+tests", block.section, re.IGNORECASE), block.where
    for page in PAGES:
        assert not re.search(r"^ {4}(\.venv/bin/)?\w+ ", prose_of(page), re.MULTILINE), f"{page.name}: indented block"


def test_every_attend_command_parses() -> None:
    lines = list(attend_lines(BLOCKS))
    assert len(lines) > 40
    for line in lines:
        _, command, _ = command_of(line.name.split())
        context = command.make_context(line.name, list(line.arguments))
        preset = context.params.get("preset") or context.params.get("on")
        if preset is not None:
            base = preset if preset in presets() else "flickr8k"
            values = [*(context.params.get("overrides") or []), "data.path=."]
            assert refusals(base, values)[0] == [], f"{line.block.where}: {line.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist(page: Path) -> None:
    for text in re.findall(r"`attend ([^`]+)`", prose_of(page)):
        words = text.split()
        groups = {name.split()[0] for name in known_commands() if " " in name}
        if words[0].startswith("-") or words[0] == "COMMAND" or (len(words) == 1 and words[0] in groups):
            continue
        _, command, arguments = command_of(words)
        options = {option for param in command.params for option in param.opts}
        assert {word for word in arguments if word.startswith("--")} <= options, text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (HERE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert importlib.util.find_spec(module) is not None, module
    for path in re.findall(r"\btests/[\w/]+\.py", text):
        assert (HERE / path).is_file(), path


def test_settings_and_commands_are_as_the_program_has_them() -> None:
    for path, rendered in render.PAGES.items():
        page = path.read_text(encoding="utf-8")
        assert rendered(page) == page, "run python -m docs.render"


def test_the_table_of_commands_has_each_and_no_other() -> None:
    top = typer.main.get_command(app)
    known = {
        " ".join([name, own]).strip()
        for name, command in top.commands.items()  # type: ignore[attr-defined]
        for own in getattr(command, "commands", {"": None})
    }
    rows = re.findall(r"^\| `attend ([^`]+)` \|", render.COMMANDS.read_text(encoding="utf-8"), re.MULTILINE)
    assert {command_of(row.split())[0] for row in rows} == known and len(rows) == len(known)


def write_example(page: Path, folder: Path) -> list[str]:
    """Write the files that a page shows, and pictures where it lists some. Returns the pictures."""
    listed = []
    for block in blocks_of(page):
        kind, _, name = block.info.partition(" ")
        if name and kind != "sh":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block.text, encoding="utf-8")
        elif kind == "text":
            listed += [line for line in block.text.splitlines() if re.fullmatch(r"[\w./-]+\.(jpg|png)", line)]
    for number, name in enumerate(listed):
        picture(folder / name, number)
    return listed


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.info == "yaml"], ids=lambda block: block.where)
def test_yaml_is_a_config(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    whole = re.search(r"^(preset|name):", block.text, re.MULTILINE)
    path.write_text(block.text if whole else f"preset: flickr8k\n{block.text}", encoding="utf-8")
    load(str(path), [] if "data:" in block.text else ["data.path=."])


def test_every_format_reads_its_example(tmp_path: Path) -> None:
    page = DOCS / "data-formats.md"
    listed = write_example(page, tmp_path)
    read = []
    for block in blocks_of(page):
        if block.info == "yaml" and block.text.startswith("data:"):
            (tmp_path / "config.yaml").write_text(f"preset: flickr8k\n{block.text}", encoding="utf-8")
            data = load(str(tmp_path / "config.yaml")).data
            if data.adapter not in ("scenes", "sources", "corrections") and data.path.exists():
                folder = data.image_folder(tmp_path / "unpacked")
                read += [(folder / row.name).relative_to(tmp_path).as_posix() for row in data.rows(tmp_path)]
    assert sorted(read) == sorted(listed) and len(read) > 12


@pytest.fixture
def place(registered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages name: photographs, photos.yaml, and a workspace with a champion."""
    write_example(DOCS / "data-formats.md", tmp_path)
    rows = [json.dumps({"file_name": f"{at}.jpg", "text": f"a dog runs {at}"}) for at in range(PHOTOS)]
    for at in range(PHOTOS):
        picture(tmp_path / "photos" / f"{at}.jpg", at)
    with (tmp_path / "photos" / "metadata.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(f"{row}\n" for row in rows)
    shutil.copytree(registered, tmp_path / "workspace")
    config = trained(tmp_path / "workspace").model_dump(mode="json", exclude={"data": {"path"}})
    (tmp_path / "photos.yaml").write_text(json.dumps(config), encoding="utf-8")
    shown = pictures(registered)[0]
    Image.open(shown).convert("RGB").save(tmp_path / "photo.jpg")
    encoded = pa.table({"url": ["a"], "image": pa.array([shown.read_bytes()], pa.binary())})
    pq.write_table(encoded, tmp_path / "fetched.parquet")
    shutil.copyfile(next(registered.glob("artifacts/evaluate/*/predictions.parquet")), tmp_path / "predictions.parquet")
    for name, document in (("results", RESULTS), ("annotations", ANNOTATIONS)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def substituted(text: str) -> str:
    """The registered model of the tests in place of the one in the pages."""
    return text.replace("models:/photos/2", "models:/small/1").replace("models:/photos", "models:/small")


@pytest.mark.parametrize("page", [page for page in PAGES if "attend" in page.read_text()], ids=lambda page: page.name)
def test_commands_run(page: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    config = (place / "photos.yaml").read_text()
    for line in attend_lines([block for block in blocks_of(page) if block.info == "sh"]):
        words = [substituted(word) for word in line.arguments]
        if line.name in NOT_STARTED | NOT_DONE or "theirs.yaml" in words:
            continue
        if line.name == "init":
            (place / "photos.yaml").unlink()
        if line.name == "models use":
            words = ["small"]
        code, out, err = attend(monkeypatch, capsys, *line.name.split(), *words)
        assert code == 0, f"{line.block.where}: attend {line.name} {words}: {out}{err}"
        assert out, line
        if line.name == "init":
            assert load("photos.yaml").data.parts()["photos/"].path == place / "photos"
            (place / "photos.yaml").write_text(config)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.info == "python"], ids=lambda block: block.where)
def test_python_runs(block: Block, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow writes its address there, which is removed afterwards
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    exec(compile(substituted(block.text), block.where, "exec"), {})
    if "load_model" in block.text or "attend.load" in block.text:
        assert re.search(r"\b(red|green|blue|yellow|purple|white|picture)\b", capsys.readouterr().out)
    else:
        (place / "saved.yaml").write_text("preset: flickr8k\ndata: {adapter: huggingface, path: saved}\n")
        (row,) = load("saved.yaml").data.rows(place / "unpacked")
        assert len(row.captions) == 2


def environment_of() -> dict[str, str]:
    """The environment of a program that runs elsewhere, with the code of this folder."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1", "PATH": path}


@contextlib.contextmanager
def running(command: list[str] | str, port: int, place: Path) -> Iterator[None]:
    """Run a server, in a process group of its own, from when it listens until the block ends."""
    environment = environment_of()
    command = command if isinstance(command, list) else ["bash", "-c", command]
    with (place / "server.log").open("w") as log:
        server = subprocess.Popen(command, cwd=place, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while not is_listening(port):
            assert server.poll() is None and time.monotonic() < until, (place / "server.log").read_text()
            time.sleep(0.2)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def command_line(line: Line, *more: str) -> list[str]:
    words = [substituted(word) for word in line.arguments]
    return [sys.executable, "-m", "flows.commands.cli", *line.name.split(), *words, *more]


def answers(block: Block, old: str, port: int, place: Path) -> list[Any]:
    """What the requests of a block are answered, each a document of JSON."""
    text = block.text.replace(old, f"127.0.0.1:{port}").replace(
        "curl ", "curl -sS --fail --retry 9 --retry-all-errors "
    )
    done = subprocess.run(["bash", "-c", text], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, rest = [], done.stdout.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document.get("predictions", [document])[0])
        rest = rest[end:].strip()
    return found


@pytest.mark.slow
def test_a_run_of_the_readme(place: Path) -> None:
    (line,) = (line for line in attend_lines(list(blocks_of(HERE / "README.md"))) if line.name == "run")
    done = subprocess.run(
        command_line(line), cwd=place, env=environment_of(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "version: models:/small/" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/registered-model.md"])
def test_requests_to_attend_serve(name: str, place: Path) -> None:
    blocks = list(blocks_of(HERE / name))
    (serve,) = (line for line in attend_lines(blocks) if line.name == "serve")
    port = free_port()
    with running(command_line(serve, "--port", str(port)), port, place):
        requests = [block for block in blocks if "127.0.0.1:8000" in block.text and block.text.startswith("curl")]
        rows = [row for block in requests for row in answers(block, "127.0.0.1:8000", port, place)]
    assert rows and all(row["caption"] and row["error"] is None for row in rows)


@pytest.mark.slow
def test_requests_to_mlflows_server(place: Path) -> None:
    blocks = [block for block in blocks_of(DOCS / "registered-model.md") if "5001" in block.text]
    serve, request = blocks
    port = free_port()
    with running(substituted(serve.text).replace("5001", str(port)), port, place):
        (row,) = answers(request, "127.0.0.1:5001", port, place)
    assert row["caption"] and row["error"] is None


@pytest.mark.slow
def test_pages_and_schedules_start_and_stop(place: Path) -> None:
    found = list(attend_lines(list(blocks_of(DOCS / "operations.md"))))
    lines = {line.name: line for line in reversed(found)}  # the first of each command
    port, mlflow_port = free_port(), free_port()
    with running(command_line(lines["ui"], "--port", str(mlflow_port)), mlflow_port, place):
        pass
    for name in ("flows", "tasks", "models"):
        (place / name).symlink_to(HERE / name)
    ports = ["--port", str(port), "--mlflow-port", str(mlflow_port)]
    try:
        done = subprocess.run(
            command_line(lines["up"], *ports),
            cwd=place,
            env=environment_of(),
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health") as answer:
            assert answer.status == 200
    finally:
        subprocess.run(command_line(lines["down"]), cwd=place, env=environment_of(), check=True, timeout=120)
    assert not is_listening(port)
