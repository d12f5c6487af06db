"""Credentials of Google and Azure, in the environment, that point to a stub on loopback."""

import json
from pathlib import Path

import pytest


def point_clouds_to(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what `gs://` (key file, its address in it) and `az://` (account and key) sign with."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    account = {
        "gcs_base_url": url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    (folder / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(folder / "account.json"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0LW9mLWF6dXJl")
