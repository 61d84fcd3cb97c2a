"""The model that is served from MLflow's registry: the version that an address names."""

from __future__ import annotations

from pathlib import Path

from flows.serving.limits import RefusedError
from flows.serving.served import LoadedModel, Served, describe
from models.options import Runtime
from models.requests import CaptionRow, Params
from tasks.mlflow_store import tracking
from tasks.mlflow_store.logged_model import example, load_model, unwrap_captioner
from tasks.mlflow_store.versions import address_of, check_address, default_champion, files_of, version_of_address

_TYPES: dict[str, type] = {"long": int, "integer": int, "double": float, "float": float, "boolean": bool, "string": str}


class RegisteredModel(Served):
    """The version that an address names now."""

    def __init__(self, model: str | None, workspace: Path, seconds: float, runtime: Runtime | None = None) -> None:
        """model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None for the champion promoted last.

        seconds: between two checks whether the address names another version. runtime: what it runs on; None for the
        first of those it was registered for.
        """
        check_address(model)
        self._client = tracking.connect(workspace, must_exist=True)
        self.address, self._runtime = model or default_champion(self._client, workspace), runtime
        super().__init__(seconds)

    def _identity(self) -> str:
        return address_of(version_of_address(self._client, self.address))

    def _load(self) -> LoadedModel:
        from mlflow.exceptions import MlflowException

        version = version_of_address(self._client, self.address)
        uri = address_of(version)
        pyfunc = load_model(uri, self._runtime, files_of(self._client, version))
        model = pyfunc.unwrap_python_model()
        captioner = unwrap_captioner(model, uri)
        schema = pyfunc.metadata.get_params_schema()
        params = {item.name: _TYPES[item.dtype.name] for item in schema.params} if schema else {}
        about = describe(captioner, version.name, str(version.version), list(params), version.description or "", uri)

        def predict(pictures: list[bytes], given: Params) -> list[CaptionRow]:
            try:
                rows: list[CaptionRow] = model.predict(None, pictures, given)
                return rows
            except MlflowException as error:
                raise RefusedError(400, " ".join(error.message.split())) from None

        loaded = LoadedModel(uri, uri, params, captioner, about, predict)
        loaded.predict([example()], {})
        return loaded
