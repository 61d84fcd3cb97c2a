"""A model served from MLflow's registry: the version that an address names."""

from __future__ import annotations

from pathlib import Path

from flows.serving.served import LoadedModel, Served
from models.options import Runtime
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import open_captioner
from tasks.mlflow_store.versions import address_of, check_address, default_champion, files_of, version_of_address


class RegisteredModel(Served):
    """The version that an address currently names."""

    def __init__(self, model: str | None, workspace: Path, seconds: float, runtime: Runtime | None = None) -> None:
        """model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None for the champion in use.

        seconds: the interval between checks whether the address names another version. runtime: None for the first of
        the version's runtimes.
        """
        check_address(model)
        self._client = tracking.connect(workspace, must_exist=True)
        self.address, self._runtime = model or default_champion(self._client, workspace), runtime
        super().__init__(seconds)

    def _identity(self) -> str:
        return address_of(version_of_address(self._client, self.address))

    def _load(self) -> LoadedModel:
        version = version_of_address(self._client, self.address)
        uri = address_of(version)
        loaded = open_captioner(uri, files_of(self._client, version), self._runtime)
        return LoadedModel.of(loaded, uri, uri, version.name, str(version.version), version.description or "")
