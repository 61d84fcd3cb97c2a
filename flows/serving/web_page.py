"""A web page of a server: its HTML, CSS and script in a package's folder `page`, and the files that pages share."""

from __future__ import annotations

import importlib.resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tasks.evaluation.page_files import page_file

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html"}


class Page:
    """The routes of a page and its files."""

    def __init__(self, package: str, name: str) -> None:
        folder = importlib.resources.files(package) / "page"
        own = [f"{name}.{suffix}" for suffix in _MEDIA_TYPES]
        self._main = f"{name}.html"
        self._files = {file: (folder / file).read_text(encoding="utf-8") for file in own}
        self._files |= {file: page_file(file) for file in ("look.css", "heat.js")}

    def routes(self) -> list[Route]:
        """Return the routes of the page, `/`, and of its files."""
        return [Route("/", self.page), Route("/static/{name}", self.static)]

    async def page(self, _: Request) -> Response:
        """Return the web page."""
        return Response(self._files[self._main], media_type="text/html")

    async def static(self, request: Request) -> Response:
        """Return a file of the web page."""
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404, "no such file")
        return Response(self._files[name], media_type=_MEDIA_TYPES[name.rpartition(".")[2]])
