"""Build the root file systems of the Containerfiles without Docker, and run them in a namespace.

    python -m bench.conformance.container CAPTIONER PICTURE [--folder F]
    python -m bench.conformance.container --pipeline [--folder F]

CAPTIONER: a folder that `attend export` wrote. The script follows the Containerfile line by line. The base image is
built with debootstrap and stripped like Debian's slim images. The server is tested as a standalone container, and as
SageMaker runs one: with the argument `serve`, the captioner in /opt/ml/model, and requests to /ping and /invocations.
With --pipeline, Containerfile.pipeline is built, and trains and registers a captioner of generated pictures. Needs
root, debootstrap, unshare and a network.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.machine import describe

_HERE = Path(__file__).resolve().parents[2]
_SLIM = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt/lists")
# Files of this machine that a network may need while the image is built, and that are not to stay in it.
_NETWORK = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
_PORT = 8080


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("captioner", type=Path, nargs="?")
    arguments.add_argument("picture", type=Path, nargs="?")
    arguments.add_argument("--pipeline", action="store_true")
    arguments.add_argument("--folder", type=Path)
    args = arguments.parse_args()
    describe()
    if args.pipeline:
        run_pipeline(args.folder)
        return
    if args.captioner is None or args.picture is None:
        arguments.error("give CAPTIONER and PICTURE, or --pipeline")
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        root, command, environment = build(Path(scratch), "Containerfile", args.captioner)
        size = size_of(root)
        parts = {name: size_of(root / name) for name in ("opt/attend", "usr", "captioner")}
        ready, caption, stopped = ask(root, command, environment, args.picture)
        (root / "opt/ml").mkdir()
        (root / "captioner").rename(root / "opt/ml/model")
        entry, serve = command[:1], ["serve"]  # SageMaker's argument replaces CMD
        _, text, _ = ask(root, [*entry, *serve], {**environment, "ATTEND_MODEL": "/opt/ml/model"}, args.picture)
    print("\n| part | value |\n| --- | --- |")
    print(f"| root file system | {size / 1e6:.0f} MB |")
    for name, part in parts.items():
        print(f"| root file system: {name} | {part / 1e6:.0f} MB |")
    print(f"| from start to /ready | {ready:.1f} s |")
    print(f"| its caption | {caption} |")
    print(f"| its caption when run as SageMaker runs it | {text} |")
    print(f"| from SIGTERM to exit | {stopped:.1f} s |")


def run_pipeline(folder: Path | None) -> None:
    """Build the pipeline's image, and run the demo in it as the user that it names."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        root, (attend, *_), environment = build(Path(scratch), "Containerfile.pipeline")
        started = time.monotonic()
        command = isolated(root, [attend, "run", "demo", "data.pictures=300", "training.epochs=2"])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        (version_line,) = (line for line in done.stdout.splitlines() if line.startswith("version:"))
        size = size_of(root)
    print("\n| part | value |\n| --- | --- |")
    print(f"| root file system, with CUDA's libraries | {size / 1e6:.0f} MB |")
    print(f"| `attend run demo data.pictures=300 training.epochs=2` | {time.monotonic() - started:.0f} s |")
    print(f"| its caption | {version_line} |")


def isolated(root: Path, command: list[str]) -> list[str]:
    """Return the command line that runs a command as nobody in a root file system, in separate namespaces."""
    spaces = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child=SIGTERM"]
    mounted = ["sh", "-c", 'mount -t proc proc "$1/proc" && shift && exec "$@"', "sh", str(root)]
    return [*spaces, *mounted, "chroot", "--userspec=65534:65534", str(root), *command]


def build(scratch: Path, file: str, captioner: Path = Path("captioner")) -> tuple[Path, list[str], dict[str, str]]:
    """Return the last stage's root file system, its command and its environment. file: the Containerfile."""
    base = scratch / "base"
    run(["debootstrap", "--variant=minbase", "bookworm", str(base)])
    for name in _SLIM:
        shutil.rmtree(base / name, ignore_errors=True)
    stages: dict[str, Path] = {}
    root, entry, command, environment = (
        base,
        [""],
        [""],
        {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    for word, rest in instructions((_HERE / file).read_text(encoding="utf-8")):
        if word == "FROM":
            name = rest.split()[-1]
            root = stages[name] = scratch / f"stage-{len(stages)}"
            run(["cp", "-a", str(base), str(root)])
        elif word == "RUN":
            with_network(root, rest, environment)
        elif word == "COPY":
            *names, into = shlex.split(rest)
            stage = names.pop(0).removeprefix("--from=") if names[0].startswith("--from=") else None
            source = _HERE if stage is None else stages[stage]
            copy([captioner if name == "captioner" else source / name.lstrip("/") for name in names], root, into)
        elif word == "ENV":
            environment |= dict(item.split("=", 1) for item in shlex.split(rest))
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        elif word == "CMD":
            command = json.loads(rest)
        elif word not in ("ARG", "USER", "EXPOSE", "STOPSIGNAL"):
            raise SystemExit(f"{file}: {word} is not followed here")
    return root, [*entry, *command], environment


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Containerfile: the keyword and the rest."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def copy(sources: list[Path], root: Path, into: str) -> None:
    """Copy files into a folder whose name ends in a slash, or a folder under another name."""
    target = root / into.lstrip("/")
    for source in sources:
        if into.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


def with_network(root: Path, line: str, environment: dict[str, str]) -> None:
    """Run a line in a stage as root. The files that this machine's network needs are added, and removed afterwards."""
    passed = {name: value for name, value in os.environ.items() if name.endswith(("_PROXY", "_proxy", "PIP_CERT"))}
    passed["SSL_CERT_FILE"] = _NETWORK[1]  # of this machine, for uv
    options = {}
    for name in _NETWORK:
        if Path(name).is_file():
            there = root / name.lstrip("/")
            options[there] = there.read_bytes() if there.is_file() else None
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, there)
    try:
        run(
            ["chroot", str(root), "/bin/sh", "-c", line], {**environment, **passed, "DEBIAN_FRONTEND": "noninteractive"}
        )
    finally:
        for there, before in options.items():
            there.unlink() if before is None else there.write_bytes(before)


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command. Raises SystemExit with the end of its output if it fails."""
    print(f"+ {shlex.join(command)[:150]}", file=sys.stderr, flush=True)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)[:200]}: {(done.stderr or done.stdout)[-2000:]}")


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def ask(root: Path, command: list[str], environment: dict[str, str], picture: Path) -> tuple[float, str, float]:
    """Run the command as nobody in the root file system; return seconds to /ready, a caption, seconds to its end."""
    started = time.monotonic()
    with subprocess.Popen(isolated(root, command), env=environment, start_new_session=True) as process:
        address = f"http://127.0.0.1:{_PORT}"
        while True:
            try:
                urllib.request.urlopen(f"{address}/ready", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - started > 60:
                    process.kill()
                    raise SystemExit("the server did not get ready") from None
                time.sleep(0.05)
        ready = time.monotonic() - started
        urllib.request.urlopen(f"{address}/ping", timeout=2).close()  # SageMaker's limit
        body = json.dumps({"instances": [base64.b64encode(picture.read_bytes()).decode()]}).encode()
        request = urllib.request.Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            caption = json.load(answer)["predictions"][0]["caption"]
        stopping = time.monotonic()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        return ready, caption, time.monotonic() - stopping


if __name__ == "__main__":
    main()
