"""A server's web page: its HTML, CSS and script in a package's folder `page`, and the files shared by all pages."""

from __future__ import annotations

import importlib.resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tasks.evaluation.page_files import page_file

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html"}


def page_routes(package: str, name: str) -> list[Route]:
    """Return the routes of a page, `/`, and of its files."""
    folder = importlib.resources.files(package) / "page"
    file_names = [f"{name}.{suffix}" for suffix in _MEDIA_TYPES]
    files = {file: (folder / file).read_text(encoding="utf-8") for file in file_names}
    files |= {file: page_file(file) for file in ("look.css", "heat.js")}

    async def page(_: Request) -> Response:
        return Response(files[f"{name}.html"], media_type="text/html")

    async def static(request: Request) -> Response:
        file = request.path_params["name"]
        if file not in files:
            raise HTTPException(404, "no such file")
        return Response(files[file], media_type=_MEDIA_TYPES[file.rpartition(".")[2]])

    return [Route("/", page), Route("/static/{name}", static)]
